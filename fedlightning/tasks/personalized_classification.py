"""Classification in which any part of the network may stay on the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from fedlightning.algorithms.base import Algorithm
from fedlightning.metrics.present_auroc import PresentClassesAUROC
from fedlightning.models import PersonalMLP
from fedlightning.scored import ScoredTask

Batch = tuple[Any, Tensor]


class PersonalizedClassification(ScoredTask):
    """Any network of logits, cross entropy; every client is evaluated by itself.

    Which part is personal is a choice of names: lower layers (input personalisation), upper layers (output), or one of
    several streams (split input). With none the task is ordinary classification, still evaluated client by client, for
    comparison.
    """

    per_client_evaluation = True

    def __init__(
        self,
        algorithm: Algorithm,
        network: nn.Module | None = None,
        personal: Sequence[str] = (),
        classes: int = 10,
        **federation: Any,
    ) -> None:
        """Take a network.

        Args:
            algorithm: What clients and server do.
            network: Maps inputs to logits ``[B, C]``; null for two layers on 8 x 8 images.
            personal: Dotted name prefixes within the network of the parameters that stay on the clients.
            classes: Number C of classes, of the client that has most.
            federation: Arguments of :class:`~fedlightning.FederatedLightningModule`.
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        self.personal_parameters = tuple(f"network.{prefix}" for prefix in personal)
        self._classes = classes
        self.network = PersonalMLP(64, 32, classes) if network is None else network
        self.metrics = nn.ModuleDict(
            {
                stage: MetricCollection(
                    {
                        "accuracy": MulticlassAccuracy(classes, average="micro"),
                        "f1": MulticlassF1Score(classes, average="macro"),
                        "auc": PresentClassesAUROC(classes),
                    },
                    prefix=f"{stage}_",
                    compute_groups=False,
                )
                for stage in ("val", "test")
            }
        )

    def forward(self, x: Any) -> Tensor:
        """Logits ``[B, C]``."""
        return self.network(x)  # type: ignore[no-any-return]

    def objective(self, batch: Any) -> Tensor | dict[str, Tensor]:
        """Cross entropy."""
        x, y = batch
        return F.cross_entropy(self(x), y)

    def scores(self, batch: Batch) -> Tensor:
        """Logits ``[B, C]``."""
        return self(batch[0])  # type: ignore[no-any-return]

    def evaluate(self, stage: str, batch: Batch, scores: Tensor) -> None:
        """Accuracy, macro F1, AUC and loss; classes a client's own head does not have get probability 0."""
        metrics: Any = self.metrics[stage]
        y = batch[1]
        metrics.update(F.pad(scores.softmax(1), (0, max(0, self._classes - scores.shape[1]))), y)
        self.log(f"{stage}_loss", F.cross_entropy(scores, y), batch_size=len(y))
        self.log_dict(dict(metrics.items()), prog_bar=stage == "val", batch_size=len(y))

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Predicted classes ``[B]``."""
        return self(batch[0]).argmax(1)  # type: ignore[no-any-return]
