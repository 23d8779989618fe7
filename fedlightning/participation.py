"""Who takes part in a round: how a cohort is chosen."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass

from fedlightning.seeding import derive_seed


class Participation(ABC):
    """Chooses cohorts as a pure function of seed, round and phase."""

    @abstractmethod
    def cohort(self, clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """Ids of the cohort, ascending.

        Args:
            clients: N; ids run from 0 to N - 1.
            seed: Seed of the run.
            round_index: Round, from 0.
            phase: Phase of the round, from 0; phases have cohorts of their own.
        """

    def check(self, clients: int) -> None:  # noqa: B027  # most rules serve any federation
        """Refuse a federation of N clients this rule cannot serve.

        Raises:
            ValueError: Naming the size asked for and N.
        """


@dataclass(frozen=True)
class Full(Participation):
    """Every client, every round."""

    def cohort(self, clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """All ids."""
        return list(range(clients))


@dataclass(frozen=True)
class Uniform(Participation):
    """A uniformly random cohort without replacement, anew in every round; the cost does not depend on N.

    Args:
        size: Number S of clients a round. Give this or ``fraction``.
        fraction: Share 0 < S/N <= 1 of the clients, rounded, at least one.
    """

    size: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        if (self.size is None) == (self.fraction is None):
            raise ValueError(
                f"Uniform(size={self.size}, fraction={self.fraction}): give exactly one of size and fraction."
            )
        if self.size is not None and self.size < 1:
            raise ValueError(f"Uniform(size={self.size}): expected at least 1 client.")
        if self.fraction is not None and not 0 < self.fraction <= 1:
            raise ValueError(f"Uniform(fraction={self.fraction}): expected 0 < fraction <= 1.")

    def cohort(self, clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """S distinct ids."""
        draw = random.Random(derive_seed(seed, round_index, phase, 0))
        return sorted(draw.sample(range(clients), self._count(clients)))

    def check(self, clients: int) -> None:
        """A cohort must fit into the federation."""
        if self.size is not None and self.size > clients:
            raise ValueError(
                f"Uniform(size={self.size}): the cohort is larger than the federation of {clients} clients. "
                f"Choose size <= {clients}, or Full()."
            )

    def _count(self, clients: int) -> int:
        if self.size is not None:
            return self.size
        assert self.fraction is not None
        return max(1, round(self.fraction * clients))
