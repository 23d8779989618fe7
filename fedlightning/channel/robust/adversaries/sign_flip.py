"""Clients that send the opposite of their updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedlightning.channel.base import Exchange
from fedlightning.channel.robust.adversaries.base import Adversary
from fedlightning.channel.robust.adversaries.honest import HonestRows
from fedlightning.core.validation import require


@dataclass(frozen=True, kw_only=True)
class SignFlip(Adversary):
    """Sends ``-scale`` times the client's own update.

    Args:
        scale: Factor > 0.
        clients: See :class:`Adversary`.
        share: See :class:`Adversary`.
        seed: See :class:`Adversary`.
    """

    scale: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "scale", above=0.0)

    def forge(
        self, own: Tensor, client_ids: Sequence[int], honest: HonestRows, exchange: Exchange, purpose: int
    ) -> Tensor:
        """Return the clients' updates with the opposite sign."""
        return -self.scale * own
