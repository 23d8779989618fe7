"""Supervised classification over clients."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from fedlightning.algorithms.base import Algorithm
from fedlightning.models import LogisticRegression
from fedlightning.tasks.base import FederatedLightningModule
from fedlightning.tasks.labels import require_labels

Batch = tuple[Tensor, Tensor]


class Classification(FederatedLightningModule):
    """Trains any network of logits by cross entropy, and measures accuracy and macro F1."""

    higher_is_better: ClassVar[dict[str, bool]] = {"loss": False, "objective": False}

    def __init__(
        self, algorithm: Algorithm, network: nn.Module | None = None, classes: int = 10, **federation: Any
    ) -> None:
        """Store the network, or build the default one, and set up the metrics.

        Args:
            algorithm: What clients and server do.
            network: Maps inputs ``[B, ...]`` to logits ``[B, C]``; null for logistic regression on 8 x 8 images.
            classes: Number C of classes.
            federation: Arguments of :class:`FederatedLightningModule`.
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        self._classes = classes
        self.network = LogisticRegression(64, classes) if network is None else network
        self.metrics = nn.ModuleDict(
            {
                stage: MetricCollection(
                    {
                        "accuracy": MulticlassAccuracy(classes, average="micro"),
                        "f1": MulticlassF1Score(classes, average="macro"),
                    },
                    prefix=f"{stage}_",
                )
                for stage in ("val", "test", "global_train")
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits ``[B, C]``."""
        return self.network(x)  # type: ignore[no-any-return]

    def on_fit_start(self) -> None:
        """Make sure that the classifier has an output for every label."""
        require_labels(self, self._classes)

    def objective(self, batch: Batch) -> Tensor:
        """Return the cross entropy, averaged over the minibatch."""
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Log accuracy, F1 and loss of the global model, on training data too if the data module gives them."""
        self._evaluate(("val", "global_train")[dataloader_idx], batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the same metrics as in validation, on the test data."""
        self._evaluate("test", batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the predicted classes ``[B]``."""
        return self(batch[0]).argmax(1)  # type: ignore[no-any-return]

    def _evaluate(self, stage: str, batch: Batch) -> None:
        metrics: Any = self.metrics[stage]
        x, y = batch
        logits = self(x)
        metrics.update(logits, y)
        loss = F.cross_entropy(logits, y)
        losses = {f"{stage}_loss": loss}
        if (penalty := self.regularization()) is not None:
            losses[f"{stage}_objective"] = loss + penalty
        self.log_dict(losses, batch_size=len(y), sync_dist=True, add_dataloader_idx=False)
        self.log_dict(metrics, prog_bar=stage == "val", batch_size=len(y), add_dataloader_idx=False)
