"""The coordinatewise trimmed mean (Yin, Chen, Ramchandran and Bartlett, ICML 2018, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor

from torch import Tensor

from fedlightning.channel.base import Aggregation, Rows
from fedlightning.channel.robust.columns import ascending, by_columns
from fedlightning.channel.robust.enough import require_enough
from fedlightning.core.validation import require


@dataclass(frozen=True)
class TrimmedMean(Aggregation):
    """Averages what is left of every coordinate without its largest and its smallest values.

    Every coordinate stays between the smallest and the largest honest value while at most floor(share * S) of the S
    clients are adversaries.

    Args:
        share: Share 0 < share < 0.5 of the clients at each end that is left out, rounded down.
    """

    share: float

    def __post_init__(self) -> None:
        require(self, "share", above=0.0, below=0.5)

    @property
    def fewest(self) -> int:
        """Return the smallest number of clients of whom one is left out at each end."""
        return max(3, ceil(1 / self.share - 1e-9))

    def aggregate(self, rows: Rows) -> Tensor:
        """Return the coordinatewise trimmed mean.

        Raises:
            ValueError: If nobody would be left out at either end.
        """
        require_enough(self, rows, "Give a larger share below 0.5")
        trimmed = floor(self.share * rows.count + 1e-9)  # 0.29 * 100 is below 29 in binary numbers
        return by_columns(rows, lambda block: ascending(block)[trimmed : rows.count - trimmed].mean(dim=0))
