"""A global and a personal head as one, so that a client's own model is a plain network with one head."""

from __future__ import annotations

from torch import Tensor, nn

from fedlightning.models.conditional_policy import ConditionalPolicy, head_context


class SummedHeads(nn.Module):
    """Adds the logits of two heads, as FedRoD's personal model does."""

    def __init__(self, head: nn.Module, own_head: nn.Module) -> None:
        """Store the two heads.

        Args:
            head: The global one, features to logits ``[B, C]``.
            own_head: The personal one, likewise.
        """
        super().__init__()
        self.head = head
        self.own_head = own_head

    def forward(self, features: Tensor) -> Tensor:
        """Map features to logits ``[B, C]``."""
        return self.head(features) + self.own_head(features)  # type: ignore[no-any-return]


class PolicyHeads(nn.Module):
    """Splits the features between two heads by a policy, as FedCP's personal model does."""

    def __init__(self, head: nn.Module, own_head: nn.Module, policy: ConditionalPolicy) -> None:
        """Store the two heads and the policy.

        Args:
            head: The global one, features to logits ``[B, C]``.
            own_head: The personal one, likewise; its weights are what the policy goes by.
            policy: Shares out features ``[B, K]``.
        """
        super().__init__()
        self.head = head
        self.own_head = own_head
        self.policy = policy

    def forward(self, features: Tensor) -> Tensor:
        """Map features ``[B, K]`` to logits ``[B, C]``."""
        own, common = self.policy(features, head_context(self.own_head))
        return self.own_head(own) + self.head(common)  # type: ignore[no-any-return]
