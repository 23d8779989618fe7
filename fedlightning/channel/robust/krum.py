"""Krum and Multi-Krum (Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS 2017).

The score of an update is the sum of its squared distances to its ``S - f - 2`` nearest other updates, with S clients in
the cohort and f adversaries. Krum takes the update with the smallest score, Multi-Krum the mean of the m best ones.
Among equal scores, the client with the smaller id comes first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.channel.base import Aggregation, Rows
from fedlightning.channel.robust.distances import squared_distances
from fedlightning.channel.robust.enough import require_enough
from fedlightning.core.validation import require


@dataclass(frozen=True)
class Krum(Aggregation):
    """Takes the update of the client that is closest to its nearest neighbours.

    Args:
        adversaries: Number f >= 0 of adversaries in a cohort that it withstands; cohorts need 2 f + 3 clients.
    """

    adversaries: int

    def __post_init__(self) -> None:
        require(self, "adversaries", at_least=0)

    @property
    def fewest(self) -> int:
        """Return 2 f + 3."""
        return 2 * self.adversaries + 3

    def aggregate(self, rows: Rows) -> Tensor:
        """Return the update with the smallest score.

        Raises:
            ValueError: If there are fewer than 2 f + 3 updates.
        """
        return _best(self, rows, self.adversaries, 1)


@dataclass(frozen=True)
class MultiKrum(Aggregation):
    """Averages the updates of the clients that are closest to their nearest neighbours.

    Args:
        adversaries: Number f >= 0 of adversaries in a cohort that it withstands; cohorts need 2 f + 3 clients.
        selected: Number m >= 1 of updates that are averaged; null for all but f.
    """

    adversaries: int
    selected: int | None = None

    def __post_init__(self) -> None:
        require(self, "adversaries", at_least=0)
        require(self, "selected", at_least=1, optional=True)

    @property
    def fewest(self) -> int:
        """Return 2 f + 3, or m + f if that is more."""
        return max(2 * self.adversaries + 3, (self.selected or 0) + self.adversaries)

    def aggregate(self, rows: Rows) -> Tensor:
        """Return the mean of the updates with the smallest scores.

        Raises:
            ValueError: If there are fewer than 2 f + 3 updates, or fewer than m that f adversaries leave.
        """
        selected = rows.count - self.adversaries if self.selected is None else self.selected
        return _best(self, rows, self.adversaries, selected)


def _best(rule: Aggregation, rows: Rows, adversaries: int, selected: int) -> Tensor:
    """Return the mean of the updates with the smallest scores."""
    require_enough(rule, rows, "Lower the number of adversaries")
    others = squared_distances(rows).fill_diagonal_(torch.inf)
    scores = others.sort(dim=1).values[:, : rows.count - adversaries - 2].sum(dim=1)
    best = scores.argsort(stable=True)[:selected]
    return rows.combine(torch.zeros(rows.count, dtype=torch.float64).index_fill_(0, best, 1 / selected))
