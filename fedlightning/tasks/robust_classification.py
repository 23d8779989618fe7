"""Training against one l2-bounded perturbation of all inputs (Deng and Mahdavi, 2021; Xie et al., CDMA, 2023, 5.2).

    min over w, max over y:  mean CE(network_w(x + y), label) - penalty/2 * ||y||^2

The penalty takes the place of the constraint ||y||_2 <= 1. What counts is the robust loss, the value at the worst y for
the trained network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.validation import require_argument
from fedlightning.models import LogisticRegression
from fedlightning.plotting.pictures import attack_figure
from fedlightning.tasks.base import FederatedLightningModule
from fedlightning.tasks.labels import require_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Batch = tuple[Tensor, Tensor]


class RobustClassification(FederatedLightningModule):
    """Trains a classifier against one perturbation of all inputs, whose squared norm is penalised."""

    max_parameters = ("perturbation",)

    def __init__(
        self,
        algorithm: Algorithm,
        network: nn.Module | None = None,
        shape: Sequence[int] = (1, 8, 8),
        classes: int = 10,
        penalty: float = 0.002,
        ascent_steps: int = 20,
        ascent_lr: float = 1.0,
        **federation: Any,
    ) -> None:
        """Store the network, or build the default one, and set up the metrics.

        Args:
            algorithm: What clients and server do.
            network: Maps inputs ``[B, *shape]`` to logits ``[B, C]``; null for logistic regression.
            shape: Of an input.
            classes: Number C of classes.
            penalty: lambda > 0.
            ascent_steps: Gradient steps on all evaluation data that find the worst perturbation.
            ascent_lr: Their step size.
            federation: Arguments of :class:`FederatedLightningModule`.
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        self._classes = classes
        require_argument(self, "penalty", penalty, at_least=0.0)
        require_argument(self, "ascent_steps", ascent_steps, at_least=1, whole=True)
        require_argument(self, "ascent_lr", ascent_lr, above=0.0)
        self.network = LogisticRegression(int(torch.Size(shape).numel()), classes) if network is None else network
        self.perturbation = nn.Parameter(torch.zeros(*shape))
        self.penalty, self.ascent_steps, self.ascent_lr = penalty, ascent_steps, ascent_lr
        self.accuracy = nn.ModuleDict(
            {
                f"{stage}_{name}": MulticlassAccuracy(classes, average="micro")
                for stage in ("val", "test", "global_train")
                for name in ("accuracy", "robust_accuracy")
            }
        )
        self._seen: dict[str, list[Batch]] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``[B, C]`` of unperturbed inputs."""
        return self.network(x)  # type: ignore[no-any-return]

    def on_fit_start(self) -> None:
        """Make sure that the classifier has an output for every label."""
        require_labels(self, self._classes)

    def objective(self, batch: Batch) -> Tensor:
        """Return the cross entropy of perturbed inputs minus the perturbation's penalty."""
        x, label = batch
        price = self.penalty / 2 * self.perturbation.square().sum()
        return F.cross_entropy(self(x + self.perturbation), label) - price

    def worst_perturbation(self, batches: Sequence[Batch]) -> tuple[Tensor, Tensor]:
        """Search for the worst perturbation of the present network by full-batch ascent, and return it with its loss.

        The ascent starts at the trained perturbation. ``ascent_steps`` are few: the loss found is the paper's measure,
        not the maximum, and where two trained perturbations differ, so does the start.

        Args:
            batches: All data.

        Returns:
            Perturbation ``[*shape]`` and mean objective, a scalar.
        """
        samples = sum(len(label) for _, label in batches)
        with torch.inference_mode(mode=False), torch.enable_grad():
            worst = self.perturbation.detach().clone().requires_grad_()
            held = [(x.clone(), label.clone()) for x, label in batches]
            for _ in range(self.ascent_steps):
                (g,) = torch.autograd.grad(self._robust_loss(worst, held, samples), worst)
                worst = (worst + self.ascent_lr * g).detach().requires_grad_()
            with torch.no_grad():
                return worst.detach(), self._robust_loss(worst, held, samples)

    def _robust_loss(self, perturbation: Tensor, batches: Sequence[Batch], samples: int) -> Tensor:
        losses = [F.cross_entropy(self(x + perturbation), label, reduction="sum") for x, label in batches]
        return torch.stack(losses).sum() / samples - self.penalty / 2 * perturbation.square().sum()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log the accuracy on unperturbed inputs, of training data too if the data module gives them."""
        self._evaluate(("val", "global_train")[dataloader_idx], batch)

    def on_validation_epoch_end(self) -> None:
        """Log loss and accuracy under the perturbation that ascent finds."""
        self._attack()
        super().on_validation_epoch_end()

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the same metrics as in validation, on the test data."""
        self._evaluate("test", batch)

    def on_test_epoch_end(self) -> None:
        """Log loss and accuracy under the perturbation that ascent finds."""
        self._attack()

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the predicted classes ``[B]``."""
        return self(batch[0]).argmax(1)  # type: ignore[no-any-return]

    def pictures(self) -> dict[str, Figure]:
        """Draw the perturbation: blue lowers a pixel, red raises it."""
        flat = self.perturbation.detach()
        return {"perturbation": attack_figure(flat if flat.dim() == 3 else flat.reshape(1, 1, -1))}

    def on_validation_start(self) -> None:
        """Forget the batches of an evaluation that was interrupted."""
        super().on_validation_start()
        self._seen = {}

    def on_test_start(self) -> None:
        """Forget the batches of an evaluation that was interrupted."""
        super().on_test_start()
        self._seen = {}

    def _evaluate(self, stage: str, batch: Batch) -> None:
        metric: Any = self.accuracy[f"{stage}_accuracy"]
        metric.update(self(batch[0]), batch[1])
        self.log(
            f"{stage}_accuracy",
            metric,
            prog_bar=stage == "val",
            batch_size=len(batch[1]),
            add_dataloader_idx=False,
        )
        self._seen.setdefault(stage, []).append(batch)

    def _attack(self) -> None:
        for stage, batches in self._seen.items():
            worst, loss = self.worst_perturbation(batches)
            metric: Any = self.accuracy[f"{stage}_robust_accuracy"]
            for x, label in batches:
                metric.update(self(x + worst), label)
            self.log(f"{stage}_robust_loss", loss, prog_bar=stage == "val")
            self.log(f"{stage}_robust_accuracy", metric)
            self.log(f"{stage}_worst_norm", worst.norm())
        self._seen = {}
