"""Schedules that are formulas of the number of rounds done."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.schedule import Schedule
from fedlightning.core.validation import require, require_instance


@dataclass(frozen=True)
class Milestones(Schedule):
    """Keeps a value until the next milestone.

    Args:
        values: The value from each number of rounds done on, increasing and beginning with 0:
            ``{0: 0.1, 30: 0.01}`` is 0.1 in the first thirty rounds and 0.01 afterwards.
    """

    values: Mapping[int, float]

    def __post_init__(self) -> None:
        if not isinstance(self.values, Mapping) or any(type(rounds) is not int for rounds in self.values):
            raise InvalidTypeError(
                f"Milestones(values={self.values!r}): expected whole numbers of rounds and the values from there on, "
                "e.g. {0: 0.1, 30: 0.01}."
            )
        rounds = list(self.values)
        if not rounds or rounds[0] != 0:
            raise InvalidValueError(f"Milestones(values={self.values!r}): expected the first milestone at 0.")
        for before, after in pairwise(rounds):
            if after <= before:
                raise InvalidValueError(
                    f"Milestones(values={self.values!r}): expected increasing milestones, but {after} follows {before}."
                )
        object.__setattr__(self, "landmarks", tuple(rounds))

    def __call__(self, rounds: int) -> float:
        """Return the value of the last milestone up to ``rounds``."""
        return self.values[max(milestone for milestone in self.values if milestone <= rounds)]


@dataclass(frozen=True)
class Exponential(Schedule):
    """Multiplies the value by a factor every few rounds: ``start * gamma ** (rounds // every)``.

    Args:
        start: Value in the first round.
        gamma: Factor > 0; below 1 the value falls.
        every: Rounds from one multiplication to the next, at least 1.
    """

    start: float
    gamma: float
    every: int = 1

    def __post_init__(self) -> None:
        require(self, "start")
        require(self, "gamma", above=0.0)
        require(self, "every", at_least=1)

    def __call__(self, rounds: int) -> float:
        """Return ``start * gamma ** (rounds // every)``; infinite where that is too large for a float."""
        try:
            return float(self.start * self.gamma ** (rounds // self.every))
        except OverflowError:
            return math.copysign(math.inf, self.start)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """Divides the value by a power of the round: ``start / (1 + rounds / scale) ** power``.

    With power 1/2 and 1 these are the decreasing steps of stochastic approximation.

    Args:
        start: Value in the first round.
        power: Exponent >= 0.
        scale: Number of rounds > 0 after which the value is ``start / 2 ** power``.
    """

    start: float
    power: float = 0.5
    scale: float = 1.0

    def __post_init__(self) -> None:
        require(self, "start")
        require(self, "power", at_least=0.0)
        require(self, "scale", above=0.0)

    def __call__(self, rounds: int) -> float:
        """Return ``start / (1 + rounds / scale) ** power``."""
        return float(self.start / (1 + rounds / self.scale) ** self.power)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Follows half a cosine from one value to another, and stays there (Loshchilov and Hutter, ICLR 2017, no restarts).

    The value is ``end + (start - end) * (1 + cos(pi * rounds / length)) / 2`` with ``length = self.rounds``.

    Args:
        start: Value in the first round.
        rounds: Length of the descent, at least 1: the value is ``end`` once that many rounds are done.
        end: Value at the end. From there on a step size of 0 moves nothing, in algorithms that do not divide by it.
    """

    start: float
    rounds: int
    end: float = 0.0

    def __post_init__(self) -> None:
        require(self, "start", "end")
        require(self, "rounds", at_least=1)
        object.__setattr__(self, "landmarks", (0, self.rounds - 1))

    def __call__(self, rounds: int) -> float:
        """Return the value on the curve."""
        share = 0.5 * (1 + math.cos(math.pi * min(rounds, self.rounds) / self.rounds))
        return float(self.end + (self.start - self.end) * share)


@dataclass(frozen=True)
class Warmup(Schedule):
    """Rises in a straight line to the value at which another schedule starts, and goes on with that schedule.

    In the first round the value is ``1 / (rounds + 1)`` of the other schedule's first one.

    Args:
        rounds: Number of rounds of the rise, at least 1.
        then: The schedule that follows, whose first round comes after the rise.
    """

    rounds: int
    then: Schedule

    def __post_init__(self) -> None:
        require(self, "rounds", at_least=1)
        require_instance("Warmup(then", self.then, Schedule, "Exponential(0.1, gamma=0.99)")
        object.__setattr__(self, "landmarks", (0, *(self.rounds + rounds for rounds in self.then.landmarks)))

    def __call__(self, rounds: int) -> float:
        """Return the value on the line, or that of the schedule that follows."""
        if rounds < self.rounds:
            return float(self.then(0) * (rounds + 1) / (self.rounds + 1))
        return self.then(rounds - self.rounds)
