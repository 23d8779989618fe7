"""Inner-product manipulation (Xie, Koyejo and Gupta, "Fall of empires", UAI 2019): a step against the honest mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedlightning.channel.base import Exchange
from fedlightning.channel.robust.attacks.base import Attack
from fedlightning.channel.robust.attacks.honest import HonestRows
from fedlightning.core.some_clients import SomeClients
from fedlightning.core.validation import require


@dataclass(frozen=True, kw_only=True)
class InnerProductManipulation(SomeClients, Attack):
    """Sends ``-scale`` times the mean of the honest updates.

    A large scale turns the mean of all updates around; a small one makes adversaries look close to honest clients whose
    updates are small, which defeats rules that go by distances. In a cohort without honest clients, adversaries send
    their own updates.

    Args:
        scale: Factor > 0.
        clients: Ids of the adversarial clients. Give either these or ``share``.
        share: Share 0 < share <= 1 of all N clients that are adversarial in every round, at least one client.
        seed: Seed of the draw of the share.
    """

    scale: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "scale", above=0.0)

    def forge(
        self, own: Tensor, client_ids: Sequence[int], honest: HonestRows, exchange: Exchange, purpose: int
    ) -> Tensor:
        """Return the opposite of the honest mean, the same for all adversaries."""
        mean = honest.mean()
        return (-self.scale * mean).expand(len(own), -1) if honest.count else own
