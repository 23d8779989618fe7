"""Cohorts that are drawn, and whose clients all answer."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require
from fedlightning.participation.base import Participation


@dataclass(frozen=True)
class Full(Participation):
    """Selects every client in every round."""

    def cohort(self, num_clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """Return all ids."""
        return list(range(num_clients))

    def expected(self, num_clients: int) -> float:
        """Return N."""
        return float(num_clients)


@dataclass(frozen=True)
class Uniform(Participation):
    """Draws a uniformly random cohort without replacement in every round; the cost does not depend on N.

    Args:
        size: Number S of clients in a round. Give either this or ``fraction``.
        fraction: Share 0 < S/N <= 1 of the clients, rounded (halves up), at least one.
    """

    size: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.size is None) == (self.fraction is None):
            raise InvalidValueError(
                f"Uniform(size={self.size}, fraction={self.fraction}): give exactly one of size and fraction."
            )
        require(self, "size", at_least=1, optional=True)
        require(self, "fraction", above=0.0, at_most=1.0, optional=True)

    def cohort(self, num_clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """Return S distinct ids, ascending."""
        draw = random.Random(derive_seed(seed, round_index, phase, 0))
        return sorted(draw.sample(range(num_clients), self._count(num_clients)))

    def expected(self, num_clients: int) -> float:
        """Return S."""
        return float(self._count(num_clients))

    def check(self, num_clients: int) -> None:
        """Refuse a federation that is smaller than a cohort."""
        if self.size is not None and self.size > num_clients:
            raise InvalidValueError(
                f"Uniform(size={self.size}): the cohort is larger than the federation of {num_clients} clients. "
                f"Choose a size of {num_clients} or less (--data.participation.size=...), or Full()."
            )

    def _count(self, num_clients: int) -> int:
        if self.size is not None:
            return self.size
        assert self.fraction is not None
        return max(1, int(self.fraction * num_clients + 0.5))


@dataclass(frozen=True)
class Poisson(Participation):
    """Draws every client by a coin of its own in every round, as accounts of privacy like it best.

    The size of a cohort varies: it is binomial with mean ``rate * N``. A round whose cohort is empty is skipped. The
    cost of a draw grows with the cohort, not with N.

    Args:
        rate: Probability 0 < rate <= 1 of each client to take part.
    """

    rate: float

    def __post_init__(self) -> None:
        require(self, "rate", above=0.0, at_most=1.0)

    def cohort(self, num_clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """Return the ids of the clients whose coins fell, ascending; there may be none."""
        if self.rate == 1.0:
            return list(range(num_clients))
        draw = random.Random(derive_seed(seed, round_index, phase, 0))
        step = math.log1p(-self.rate)
        ids: list[int] = []
        client = -1
        while True:  # from one client to the next one that takes part, the gaps are geometric
            gap = math.log(1.0 - draw.random()) / step
            if gap >= num_clients - client - 1:
                return ids
            client += 1 + int(gap)
            ids.append(client)

    def fewest(self, num_clients: int) -> int:
        """Return 0, as all coins may fall the other way; N for a rate of 1."""
        return num_clients if self.rate == 1.0 else 0

    def expected(self, num_clients: int) -> float:
        """Return ``rate * N``."""
        return self.rate * num_clients
