"""The mean of the updates, which a single adversary moves anywhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.channel.base import Aggregation, Rows


@dataclass(frozen=True)
class Mean(Aggregation):
    """Averages the updates: what happens without a rule, to compare other rules with under attack."""

    @property
    def is_mean(self) -> bool:
        """Return True."""
        return True

    def aggregate(self, rows: Rows) -> Tensor:
        """Return the mean of the rows."""
        return rows.combine(torch.full((rows.count,), 1 / rows.count, dtype=torch.float64))
