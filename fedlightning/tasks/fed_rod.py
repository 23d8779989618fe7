"""FedRoD (Chen and Chao, ICLR 2022): one network with a generic and a personal head.

    minimise over body, head and every client's own_head:
    mean_i  CE(head(f) + log n_i, y)  +  CE(head(f) + own_head(f), y),    f = body(x)

n_i are the client's numbers of training samples by class. The first term, the balanced softmax, makes the generic head
that of balanced classes on every client, so the generic models average well; the second trains the client's own head
for its own classes, and its gradient reaches nothing else. Trained by federated averaging with ``own_head`` personal.

The personal model adds the heads' logits, the generic one uses the first alone. (This is the paper's linear personal
head; its hypernetwork variant is not here.)
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from fedlightning.algorithms.base import Algorithm
from fedlightning.models import PersonalMLP
from fedlightning.tasks.personalized_classification import PersonalizedClassification


class FedRoD(PersonalizedClassification):
    """Classification with a generic and a personal head; batches are (input, label, client's class counts)."""

    def __init__(
        self, algorithm: Algorithm, network: nn.Module | None = None, classes: int = 10, **federation: Any
    ) -> None:
        """Take a network.

        Args:
            algorithm: What clients and server do; :class:`~fedlightning.algorithms.FedSim` in the paper.
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
                f"FedRoD(network={type(network).__name__}): expected a network with parts 'body' and 'head', such as "
                "PersonalMLP or TwoLayerCNN."
            )
        super().__init__(algorithm, network, classes=classes, **federation)
        self.save_hyperparameters()
        self.own_head: nn.Module = deepcopy(head)
        self.personal_parameters = ("own_head", *self.personal_parameters)
        for stage in ("val", "test"):
            metrics: Any = self.metrics[stage]
            self.metrics[f"{stage}_global"] = metrics.clone(prefix=f"{stage}_global_")

    def forward(self, x: Any) -> Tensor:
        """Logits ``[B, C]`` of the personal model."""
        network: Any = self.network
        features = network.body(x)
        return network.head(features) + self.own_head(features)  # type: ignore[no-any-return]

    def objective(self, batch: Any) -> dict[str, Tensor]:
        """Balanced softmax of the generic head, cross entropy of the personal one."""
        x, y, counts = batch
        network: Any = self.network
        features = network.body(x)
        generic = network.head(features)
        own: Tensor = generic.detach() + self.own_head(features.detach())
        balanced = F.cross_entropy(generic + counts.clamp(min=1e-8).log(), y)
        personal = F.cross_entropy(own, y)
        return {"loss": balanced + personal, "generic_loss": balanced, "personal_loss": personal}

    def scores(self, batch: Any) -> dict[str, Tensor]:  # type: ignore[override]
        """Logits ``[B, C]`` of the personal and of the generic model."""
        network: Any = self.network
        features = network.body(batch[0])
        generic = network.head(features)
        return {"own": generic + self.own_head(features), "generic": generic}

    def evaluate(self, stage: str, batch: Any, scores: dict[str, Tensor]) -> None:  # type: ignore[override]
        """As the base class for the personal model; accuracy, macro F1 and AUC for the generic one."""
        x, y, _ = batch
        super().evaluate(stage, (x, y), scores["own"])
        metrics: Any = self.metrics[f"{stage}_global"]
        metrics.update(scores["generic"].softmax(1), y)
        self.log_dict(dict(metrics.items()), batch_size=len(y))
