"""Classification in which any part of the network may stay on the clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.settings import settings
from fedlightning.metrics.present_auroc import PresentClassesAUROC
from fedlightning.models import PersonalMLP
from fedlightning.tasks.batched_evaluation import BatchedEvaluationTask
from fedlightning.tasks.labels import require_labels

Batch = tuple[Any, Tensor]


class PersonalizedClassification(BatchedEvaluationTask):
    """Trains any network of logits by cross entropy, and evaluates every client by itself.

    Which part is personal is a choice of names: lower layers (input personalisation), upper layers (output), or one of
    several streams (split input). With none the task is ordinary classification, still evaluated client by client, for
    comparison.
    """

    per_client_evaluation = True
    higher_is_better: ClassVar[dict[str, bool]] = {"loss": False}

    class_counts: ClassVar[bool] = False
    """Whether a sample is (input, label, its client's class counts) or (input, label)."""

    def __init__(
        self,
        algorithm: Algorithm,
        network: nn.Module | None = None,
        personal: Sequence[str] = (),
        classes: int = 10,
        **federation: Any,
    ) -> None:
        """Store the network, or build the default one, and set up the metrics.

        Args:
            algorithm: What clients and server do.
            network: Maps inputs to logits ``[B, C]``; null for two layers on 8 x 8 images.
            personal: Dotted name prefixes within the network of the parameters that stay on the clients.
            classes: Number C of classes, of the client that has most.
            federation: Arguments of :class:`~fedlightning.FederatedLightningModule`.
        """
        super().__init__(algorithm, **federation)
        self.save_hyperparameters()
        if isinstance(personal, str) or not isinstance(personal, Sequence):
            raise InvalidTypeError(f"{type(self).__name__}(personal={personal!r}): expected a list of name prefixes.")
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
                for stage in ("val", "test", "local_train")
            }
        )

    def forward(self, x: Any) -> Tensor:
        """Return the logits ``[B, C]``."""
        return self.network(x)  # type: ignore[no-any-return]

    def on_fit_start(self) -> None:
        """Make sure that the classifier has an output for every label."""
        require_labels(self, self._classes)

    def objective(self, batch: Any) -> Tensor | dict[str, Tensor]:
        """Return the cross entropy, averaged over the minibatch."""
        x, y = self.unpack(batch)
        return F.cross_entropy(self(x), y)

    def unpack(self, batch: Any) -> Sequence[Any]:
        """Return the parts of a batch, after a check of their number.

        Raises:
            ValueError: If it has others than the task takes.
        """
        parts = ("input", "label", "class counts")[: 2 + self.class_counts]
        got = len(batch) if isinstance(batch, list | tuple) else 1
        if got != len(parts):
            raise InvalidValueError(
                f"{type(self).__name__} takes samples of {len(parts)} parts ({', '.join(parts)}), the data have {got}. "
                f"Give the data module {settings({'data.class_counts': self.class_counts})}."
            )
        return batch  # type: ignore[no-any-return]

    def predictions(self, batch: Batch) -> Tensor:
        """Return the logits ``[B, C]``."""
        return self(batch[0])  # type: ignore[no-any-return]

    def evaluate(self, stage: str, batch: Batch, predictions: Tensor) -> None:
        """Log accuracy, macro F1, AUC and loss; classes that a client's own head lacks get probability 0.

        Raises:
            ValueError: If the network has more outputs than ``classes``, or a label is beyond its outputs.
        """
        y = batch[1]
        outputs = predictions.shape[1]
        if outputs > self._classes:
            raise InvalidValueError(
                f"{type(self).__name__}(classes={self._classes}): the network has {outputs} outputs. Give the task "
                f"{settings({'model.classes': outputs})}, or another network."
            )
        if (label := int(y.max())) >= outputs:
            raise InvalidValueError(
                f"{type(self).__name__}: the {stage} data have label {label}, the network has {outputs} outputs, for "
                f"labels 0 to {outputs - 1}. Give the task {settings({'model.classes': label + 1})} or more, and a "
                "network with as many outputs."
            )
        self.log(f"{stage}_loss", F.cross_entropy(predictions, y), batch_size=len(y))
        self.log_dict(self.measured(stage, predictions, y), prog_bar=stage == "val", batch_size=len(y))

    def measured(self, name: str, predictions: Tensor, y: Tensor) -> dict[str, Any]:
        """Add these samples to the metrics of a stage, and return the metrics by name."""
        metrics: Any = self.metrics[name]
        metrics.update(F.pad(predictions.softmax(1), (0, self._classes - predictions.shape[1])), y)
        return dict(metrics.items())

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the predicted classes ``[B]``."""
        return self(batch[0]).argmax(1)  # type: ignore[no-any-return]
