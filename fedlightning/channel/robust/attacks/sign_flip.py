"""Clients that send the opposite of their updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedlightning.channel.base import Exchange
from fedlightning.channel.robust.attacks.base import Attack
from fedlightning.channel.robust.attacks.honest import HonestRows
from fedlightning.core.validation import require


@dataclass(frozen=True, kw_only=True)
class SignFlip(Attack):
    """Sends ``-scale`` times the client's own update.

    Args:
        scale: Factor > 0.
        clients: See :class:`Attack`.
        share: See :class:`Attack`.
        seed: See :class:`Attack`.
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
