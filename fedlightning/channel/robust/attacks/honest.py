"""What adversaries know of the honest clients of a cohort."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedlightning.channel.robust.columns import double
from fedlightning.channel.robust.rows import Peers


class HonestRows:
    """Describes one field of the updates of a cohort's honest clients, over all processes.

    Attributes:
        count: The number of honest clients.
    """

    def __init__(self, parts: Sequence[Tensor], processes: Peers | None = None) -> None:
        """Hold the rows of this process's honest clients.

        Args:
            parts: Chunks ``[C, n]``, one or more; chunks may be empty.
            processes: All processes that hold rows of this field; None for this one alone.
        """
        self._parts = parts
        self._processes = processes
        self.count = int(self._sum(torch.tensor(sum(map(len, parts)), device=parts[0].device)))

    def mean(self) -> Tensor:
        """Return the mean of the rows, ``[n]`` float64; every process must call this."""
        return self._mean(lambda row: row, self.count)

    def std(self) -> Tensor:
        """Return the standard deviation of every column, ``[n]`` float64, 0 for one row; every process must call it."""
        mean = self.mean()
        return self._mean(lambda row: (row - mean).square(), max(1, self.count - 1)).sqrt()

    def _mean(self, of: Callable[[Tensor], Tensor], divisor: int) -> Tensor:
        """Return the sum of a function of every row divided by a number; a row at a time is in float64."""
        total = torch.zeros_like(double(self._parts[0].new_empty(self._parts[0].shape[1])))
        for part in self._parts:
            for row in part:
                total += of(double(row))
        return self._sum(total) / divisor

    def _sum(self, tensor: Tensor) -> Tensor:
        return tensor if self._processes is None else self._processes.sum(tensor)
