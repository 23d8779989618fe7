"""A little is enough (Baruch, Baruch and Goldberg, NeurIPS 2019): shifts that hide in the honest updates' spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

from torch import Tensor

from fedlightning.channel.base import Exchange
from fedlightning.channel.robust.attacks.base import Attack
from fedlightning.channel.robust.attacks.honest import HonestRows
from fedlightning.core.some_clients import SomeClients
from fedlightning.core.validation import require


@dataclass(frozen=True, kw_only=True)
class ALIE(SomeClients, Attack):
    """Sends the honest updates' mean, shifted by ``z`` of their standard deviations in every coordinate.

    In a cohort without honest clients, adversaries send their own updates.

    Args:
        z: Number of standard deviations; null for the largest that the paper's count of supporters allows, which is 0
            or less for few adversaries.
        clients: Ids of the adversarial clients. Give either these or ``share``.
        share: Share 0 < share <= 1 of all N clients that are adversarial in every round, at least one client.
        seed: Seed of the draw of the share.
    """

    z: float | None = 1.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "z", optional=True)

    def forge(
        self, own: Tensor, client_ids: Sequence[int], honest: HonestRows, exchange: Exchange, purpose: int
    ) -> Tensor:
        """Return the shifted mean, the same for all adversaries."""
        mean, std = honest.mean(), honest.std()
        if not honest.count:
            return own
        z = _largest_z(exchange.cohort, honest.count) if self.z is None else self.z
        return (mean + z * std).expand(len(own), -1)


def _largest_z(cohort: int, honest: int) -> float:
    """Return the z beyond which too few honest clients are expected to make a majority with the adversaries."""
    supporters = cohort // 2 + 1 - (cohort - honest)
    share = (honest - supporters) / honest
    return NormalDist().inv_cdf(min(max(share, 1e-9), 1 - 1e-9))
