"""Synchronous rounds on a virtual clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require_instance
from fedlightning.participation.base import Participation, Recruitment, Selection
from fedlightning.participation.draws import Full
from fedlightning.participation.durations import Durations

_DURATION = 3


@dataclass(frozen=True)
class Timed(Participation):
    """Lets the cohorts of another rule take virtual time: each phase lasts as long as its slowest client.

    Who takes part, and what is computed, is as without the clock. A round that is skipped takes no time.

    Args:
        durations: How long each client works, such as ``LogNormalDuration()``.
        rule: Draws the cohort, such as ``Uniform(size=10)``; null for all clients.
    """

    durations: Durations
    rule: Participation | None = None

    def __post_init__(self) -> None:
        require_instance("Timed(durations", self.durations, Durations, "HalfNormalDuration()")
        if self.rule is not None:
            require_instance("Timed(rule", self.rule, Participation, "Uniform(size=10)")

    @property
    def keeps_virtual_time(self) -> bool:
        """Return True."""
        return True

    def cohort(self, num_clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """Return the cohort of the other rule."""
        return self.synchronous.cohort(num_clients, seed, round_index, phase)

    def select(self, num_clients: int, seed: int, round_index: int, phase: int) -> Selection:
        """Return what the other rule selects, and how long the slowest of these clients takes."""
        selection = self.synchronous.select(num_clients, seed, round_index, phase)
        draws = ((id_, random.Random(derive_seed(seed, round_index, phase, _DURATION, id_))) for id_ in selection.ids)
        seconds = max((self.durations.duration(id_, draw) for id_, draw in draws), default=0.0)
        return replace(selection, seconds=seconds)

    def recruit(self, num_clients: int, seed: int, round_index: int, phase: int) -> Recruitment:
        """Return whom the other rule invites."""
        return self.synchronous.recruit(num_clients, seed, round_index, phase)

    def fewest(self, num_clients: int) -> int:
        """Return the smallest number of clients that a round of the other rule may have."""
        return self.synchronous.fewest(num_clients)

    def expected(self, num_clients: int) -> float | None:
        """Return what the other rule expects."""
        return self.synchronous.expected(num_clients)

    def check(self, num_clients: int) -> None:
        """Refuse what the other rule refuses, a rule that says itself who is fast, and durations of other clients."""
        self.synchronous.check(num_clients)
        self.durations.check(num_clients)
        recruitment = self.synchronous.recruit(num_clients, 0, 0, 0)
        if self.synchronous.keeps_virtual_time or len(recruitment.cohorts) > 1 or recruitment.first is not None:
            raise InvalidValueError(
                f"Timed(rule={self.synchronous}): this rule has a clock of its own, or says itself who answers first. "
                "Choose Uniform(size=...), Poisson(rate=...) or Full()."
            )

    @property
    def synchronous(self) -> Participation:
        """Return the rule that draws the cohorts."""
        return Full() if self.rule is None else self.rule
