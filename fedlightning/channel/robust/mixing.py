"""Nearest-neighbour mixing before a rule (Allouah et al., "Fixing by mixing", AISTATS 2023)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.channel.base import Aggregation, Rows
from fedlightning.channel.robust.columns import double
from fedlightning.channel.robust.distances import squared_distances
from fedlightning.channel.robust.enough import require_enough
from fedlightning.core.validation import require, require_instance


@dataclass(frozen=True)
class NearestNeighbourMixing(Aggregation):
    """Replaces every update by the mean of its nearest updates, itself among them, and aggregates these means.

    It makes up for honest clients whose data differ, for whom rules by coordinates or distances alone are biased.

    Args:
        inner: Rule that aggregates the means.
        adversaries: Number f >= 0 of adversaries in a cohort; means are of S - f updates. Cohorts need 2 f + 1 clients.
    """

    inner: Aggregation
    adversaries: int

    def __post_init__(self) -> None:
        require_instance("NearestNeighbourMixing(inner", self.inner, Aggregation, "TrimmedMean(0.2)")
        require(self, "adversaries", at_least=0)

    @property
    def fewest(self) -> int:
        """Return 2 f + 1, or what the inner rule needs if that is more."""
        return max(2 * self.adversaries + 1, self.inner.fewest)

    def aggregate(self, rows: Rows) -> Tensor:
        """Return the inner rule's aggregate of the means.

        Raises:
            ValueError: If there are fewer than 2 f + 1 updates, or fewer than the inner rule needs.
        """
        require_enough(self, rows, "Lower the number of adversaries")
        neighbours = rows.count - self.adversaries
        nearest = squared_distances(rows).fill_diagonal_(-1).argsort(dim=1, stable=True)[:, :neighbours]
        mixing = torch.zeros(rows.count, rows.count, dtype=torch.float64).scatter_(1, nearest, 1 / neighbours)
        return self.inner.aggregate(MixedRows(rows, mixing))


class MixedRows:
    """Gives access to weighted means of rows, which are computed where they are looked at.

    Attributes:
        count: The number of rows, S.
    """

    def __init__(self, rows: Rows, mixing: Tensor) -> None:
        """Mix rows.

        Args:
            rows: The rows.
            mixing: Weights ``[S, S]`` float64, each of whose rows adds up to 1.
        """
        self._rows = rows
        self._mixing = mixing
        self.count = len(mixing)

    def blocks(self) -> Iterator[Tensor]:
        """Yield ``[S, c]`` blocks of consecutive columns."""
        for block in self._rows.blocks():
            exact = double(block)
            yield (self._mixing.to(exact.device) @ exact).to(block)

    def gram(self, about: Tensor | None = None) -> Tensor:
        """Return the inner products of the means, ``[S, S]`` float64; means of differences are differences of means."""
        return self._mixing @ self._rows.gram(about) @ self._mixing.T

    def combine(self, weights: Tensor) -> Tensor:
        """Return ``weights @ means``, ``[n]``."""
        return self._rows.combine(weights.double() @ self._mixing)
