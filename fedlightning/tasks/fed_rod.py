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

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.settings import settings
from fedlightning.models import SummedHeads
from fedlightning.tasks.two_heads import TwoHeadClassification


class FedRoD(TwoHeadClassification):
    """Classifies by a generic and a personal head; batches are (input, label, client's class counts).

    The algorithm of the paper is :class:`~fedlightning.algorithms.FedSim`.
    """

    class_counts = True

    def forward(self, x: Any) -> Tensor:
        """Return the logits ``[B, C]`` of the personal model."""
        network: Any = self.network
        features = self.features(x)
        return network.head(features) + self.own_head(features)  # type: ignore[no-any-return]

    def objective(self, batch: Any) -> dict[str, Tensor]:
        """Return the balanced softmax loss of the generic head plus the cross entropy of the personal one."""
        x, y, counts = self.unpack(batch)
        network: Any = self.network
        features = self.features(x)
        generic = network.head(features)
        if counts.shape[1] != generic.shape[1]:
            raise InvalidValueError(
                f"FedRoD: the data count samples of {counts.shape[1]} classes, the network has {generic.shape[1]} "
                f"outputs. Give the task {settings({'model.classes': counts.shape[1]})} and a network with as many."
            )
        own: Tensor = generic.detach() + self.own_head(features.detach())
        balanced = F.cross_entropy(generic + counts.clamp(min=1e-8).log(), y)
        personal = F.cross_entropy(own, y)
        return {"loss": balanced + personal, "generic_loss": balanced, "personal_loss": personal}

    @torch.no_grad()
    def personal_head(self) -> nn.Module:
        """Return the sum of both heads, as one linear layer if both are linear."""
        network: Any = self.network
        head, own = network.head, self.own_head
        if not isinstance(head, nn.Linear) or not isinstance(own, nn.Linear):
            return SummedHeads(head, own)
        total = deepcopy(head)
        for parameter, term in zip(total.parameters(), own.parameters(), strict=True):
            parameter.add_(term)
        return total
