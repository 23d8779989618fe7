"""Universal adversarial training (Shafahi et al., AAAI 2020; Bai and Bullins, FeDualEx, 2024, A.3 and A.4).

    min over w, max over ||delta||_inf <= D:  mean CE(network_w(image + delta), label) - lambda ||delta||_1

One perturbation for all images plays against the network. The l1 term, an attack's price, makes it sparse; it is the
max block's regulariser. (The text of A.3 adds it, which would reward dense attacks; A.1's sign is meant.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from fedlightning.algorithms.base import Algorithm
from fedlightning.metrics.structure import share_of_nonzeros
from fedlightning.models import LogisticRegression
from fedlightning.plotting.pictures import attack_figure
from fedlightning.proximal import L1, Regularizer
from fedlightning.tasks.base import FederatedLightningModule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Batch = tuple[Tensor, Tensor]


class UniversalPerturbation(FederatedLightningModule):
    """Trains a classifier against one perturbation of all inputs."""

    max_parameters = ("attack",)

    def __init__(
        self,
        algorithm: Algorithm,
        network: nn.Module | None = None,
        shape: Sequence[int] = (1, 8, 8),
        classes: int = 10,
        weight: float = 0.1,
        radius: float = 0.05,
        max_regularizer: Regularizer | None = None,
        **federation: Any,
    ) -> None:
        """Store the network, or build the default one, and set up the metrics.

        Args:
            algorithm: What clients and server do; one that takes regularisers.
            network: Maps images ``[B, *shape]`` with pixels in [0, 1] to logits ``[B, C]``; null for logistic
                regression.
            shape: Of an image, ``[C, height, width]``.
            classes: Number C of classes.
            weight: lambda > 0, price of the attack's l1 norm.
            radius: D > 0, bound of the attack on each pixel.
            max_regularizer: Another price and constraint of the attack; null for ``L1(weight, radius)``.
            federation: Arguments of :class:`FederatedLightningModule`.
        """
        price = L1(weight, radius) if max_regularizer is None else max_regularizer
        super().__init__(algorithm, max_regularizer=price, **federation)
        self.save_hyperparameters()
        pixels = int(torch.Size(shape).numel())
        self.network = LogisticRegression(pixels, classes) if network is None else network
        self.attack = nn.Parameter(torch.zeros(*shape))
        self.metrics = nn.ModuleDict(
            {
                stage: MetricCollection(
                    {
                        "clean_accuracy": MulticlassAccuracy(classes, average="micro"),
                        "attacked_accuracy": MulticlassAccuracy(classes, average="micro"),
                    },
                    prefix=f"{stage}_",
                    compute_groups=False,
                )
                for stage in ("val", "test")
            }
        )

    def forward(self, image: Tensor) -> Tensor:
        """Return the logits ``[B, C]`` of images that are not attacked."""
        return self.network(image)  # type: ignore[no-any-return]

    def objective(self, batch: Batch) -> Tensor:
        """Return the cross entropy on attacked images."""
        image, label = batch
        return F.cross_entropy(self(image + self.attack), label)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the accuracy on clean and attacked images, the loss under attack, and the density of the attack."""
        self._evaluate("val", batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the same metrics as in validation, on the test data."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the predicted classes ``[B]`` of images that are not attacked."""
        return self(batch[0]).argmax(1)  # type: ignore[no-any-return]

    def pictures(self) -> dict[str, Figure]:
        """Draw the attack: blue lowers a pixel, red raises it."""
        return {"attack": attack_figure(self.attack.detach())}

    def _evaluate(self, stage: str, batch: Batch) -> None:
        metrics: Any = self.metrics[stage]
        image, label = batch
        attacked = self(image + self.attack)
        metrics["clean_accuracy"].update(self(image), label)
        metrics["attacked_accuracy"].update(attacked, label)
        size = len(label)
        self.log(f"{stage}_loss", F.cross_entropy(attacked, label), batch_size=size, sync_dist=True)
        self.log(f"{stage}_attack_nonzeros", share_of_nonzeros(self.attack), batch_size=size)
        self.log_dict(dict(metrics.items()), prog_bar=stage == "val", batch_size=size)
