"""Classification with one body and two heads, one shared and one of each client's own."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor, nn

from fedlightning.algorithms.base import Algorithm
from fedlightning.models import PersonalMLP
from fedlightning.tasks.personalized_classification import PersonalizedClassification


class TwoHeadClassification(PersonalizedClassification):
    """Base: ``network.body`` and ``network.head`` are shared, ``own_head`` starts as the head's copy and is personal.

    Validation and test look at the personal model, whatever ``forward`` makes of the heads (``val_accuracy``), and at
    the global one, body and shared head alone (``val_global_accuracy``).
    """

    def __init__(
        self, algorithm: Algorithm, network: nn.Module | None = None, classes: int = 10, **federation: Any
    ) -> None:
        """Take a network.

        Args:
            algorithm: What clients and server do.
            network: With parts ``body``, inputs to features, and ``head``, features to logits ``[B, C]``; null for two
                layers on 8 x 8 images.
            classes: Number C of classes.
            federation: Arguments of :class:`FederatedLightningModule`.

        Raises:
            ValueError: If the network has no such parts.
        """
        network = PersonalMLP(64, 32, classes) if network is None else network
        body, head = (getattr(network, name, None) for name in ("body", "head"))
        if not isinstance(body, nn.Module) or not isinstance(head, nn.Module):
            raise ValueError(
                f"{type(self).__name__}(network={type(network).__name__}): expected a network with parts 'body' and "
                "'head', such as PersonalMLP or TwoLayerCNN."
            )
        super().__init__(algorithm, network, classes=classes, **federation)
        self.save_hyperparameters()
        self.own_head: nn.Module = deepcopy(head)
        self.personal_parameters = ("own_head", *self.personal_parameters)
        for stage in ("val", "test"):
            metrics: Any = self.metrics[stage]
            self.metrics[f"{stage}_global"] = metrics.clone(prefix=f"{stage}_global_")

    def scores(self, batch: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Logits ``[B, C]`` of the personal and of the global model."""
        x = batch[0]
        return {"own": self(x), "global": self.network(x)}

    def evaluate(self, stage: str, batch: Any, scores: dict[str, Tensor]) -> None:  # type: ignore[override]
        """As the base class for the personal model; accuracy, macro F1 and AUC for the global one."""
        x, y, *_ = batch
        super().evaluate(stage, (x, y), scores["own"])
        metrics: Any = self.metrics[f"{stage}_global"]
        metrics.update(scores["global"].softmax(1), y)
        self.log_dict(dict(metrics.items()), batch_size=len(y))
