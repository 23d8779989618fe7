"""The geometric median by the smoothed Weiszfeld algorithm (Pillutla, Kakade and Harchaoui, RFA, 2022).

Every iterate is a weighted mean of the updates. A step gives each update the weight ``1 / max(smoothing, distance)``,
where the distance is that from the iterate before. Distances follow from one matrix of inner products, so that
iterations cost S * S operations each, whatever the number of parameters, and are carried on until nothing moves.

Departures: the smoothing is in units of the updates' own spread, so that the rule commutes with scaling. The iteration
starts at the mean of the half of the updates nearest to the coordinatewise median, not at a point chosen by the user.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.channel.base import Aggregation, Rows
from fedlightning.channel.robust.distances import distances_from
from fedlightning.channel.robust.median import Median
from fedlightning.core.validation import require


@dataclass(frozen=True)
class GeometricMedian(Aggregation):
    """Takes the point whose distances to the updates have the smallest sum.

    It stays within a bounded distance of the honest updates while fewer than half of the clients are adversaries.

    Args:
        smoothing: Smallest distance >= 0 that counts in weights, in units of the median distance of the updates from
            their coordinatewise median.
        tolerance: The iteration ends when a step is shorter than this, >= 0, in the same units.
        iterations: Largest number of steps >= 1.
    """

    smoothing: float = 1e-6
    tolerance: float = 1e-8
    iterations: int = 1000

    def __post_init__(self) -> None:
        require(self, "smoothing", above=0.0)
        require(self, "tolerance", at_least=0.0)
        require(self, "iterations", at_least=1)

    def aggregate(self, rows: Rows) -> Tensor:
        """Return the geometric median."""
        gram = rows.gram(about=Median().aggregate(rows))
        return rows.combine(self._weights(gram))

    def _weights(self, gram: Tensor) -> Tensor:
        """Return the weights of the updates in their geometric median, ``[S]``.

        Args:
            gram: Inner products of the updates, ``[S, S]``, about their coordinatewise median.
        """
        distances = gram.diagonal().clamp(min=0).sqrt()
        order = distances.argsort(stable=True)[: len(gram) // 2 + 1]
        weights = torch.zeros_like(distances).index_fill_(0, order, 1 / len(order))
        spread = float(distances[order[-1]])
        if spread == 0:  # more than half of the updates are the same
            return weights
        for _ in range(self.iterations):
            before = weights
            weights = 1 / distances_from(before, gram).clamp(min=self.smoothing * spread)
            weights = weights / weights.sum()
            step = weights - before
            if float(step @ gram @ step) <= (self.tolerance * spread) ** 2:
                break
        return weights
