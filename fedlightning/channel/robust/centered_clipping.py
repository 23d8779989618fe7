"""Centred clipping (Karimireddy, He and Jaggi, ICML 2021).

From a starting point v, each iteration moves to ``v + mean_i (x_i - v) * min(1, radius / |x_i - v|)``.

Departures: the paper starts at the aggregate of the round before. Updates are differences from what the server knows
already, so that zero takes its place; another robust rule may give the starting point instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.channel.base import Aggregation, Rows
from fedlightning.channel.robust.distances import distances_from
from fedlightning.core.validation import require, require_instance


@dataclass(frozen=True)
class CenteredClipping(Aggregation):
    """Averages the updates' differences from a starting point, each clipped to a radius, once or several times.

    A client that sends another update moves the result by at most ``2 * iterations * radius / S``, with a radius given.

    Args:
        radius: Largest norm > 0 of a difference; null for the median norm of the differences from the starting point.
        iterations: Number >= 1 of steps.
        start: Rule that gives the starting point; null for zero, which is no change of what the server knows.
    """

    radius: float | None = None
    iterations: int = 3
    start: Aggregation | None = None

    def __post_init__(self) -> None:
        require(self, "radius", above=0.0, optional=True)
        require(self, "iterations", at_least=1)
        if self.start is not None:
            require_instance("CenteredClipping(start", self.start, Aggregation, "Median()")

    @property
    def fewest(self) -> int:
        """Return what the rule of the starting point needs."""
        return 1 if self.start is None else self.start.fewest

    def aggregate(self, rows: Rows) -> Tensor:
        """Return the clipped mean."""
        start = None if self.start is None else self.start.aggregate(rows)
        gram = rows.gram(about=start)
        weights = self._weights(gram)
        moved = rows.combine(weights)
        return moved if start is None else moved + (1 - float(weights.sum())) * start

    def _weights(self, gram: Tensor) -> Tensor:
        """Return the weights ``[S]`` of the updates' differences from the starting point.

        Args:
            gram: Inner products of these differences, ``[S, S]``.
        """
        radius, count = self.radius, len(gram)
        weights = gram.new_zeros(count)
        if radius is None:
            radius = float(distances_from(weights, gram).sort().values[(count - 1) // 2])
        for _ in range(self.iterations):
            distances = distances_from(weights, gram)
            factors = torch.where(distances > radius, radius / distances, 1.0)
            weights = weights * (1 - factors.sum() / count) + factors / count
        return weights
