"""The coordinatewise median (Yin, Chen, Ramchandran and Bartlett, ICML 2018, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlightning.channel.base import Aggregation, Rows
from fedlightning.channel.robust.columns import ascending, by_columns


@dataclass(frozen=True)
class Median(Aggregation):
    """Takes the median of every coordinate; of an even number of clients, the mean of the two middle values.

    Every coordinate stays between the smallest and the largest honest value while fewer than half of the clients are
    adversaries.
    """

    def aggregate(self, rows: Rows) -> Tensor:
        """Return the coordinatewise median."""
        return by_columns(rows, _median)


def _median(block: Tensor) -> Tensor:
    ordered = ascending(block)
    upper = len(block) // 2
    if len(block) % 2:
        return ordered[upper]
    return ordered[upper - 1] / 2 + ordered[upper] / 2  # halves first, as the sum may be too large for the dtype
