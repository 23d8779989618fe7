"""Which of the invited clients answer, and which of them first."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require, require_instance
from fedlightning.participation.base import Participation, Recruitment, Selection


class Responses(ABC):
    """Decides which invited clients answer, and in what order."""

    @abstractmethod
    def arrivals(self, ids: list[int], round_index: int, draw: random.Random) -> list[int]:
        """Return the ids of the clients that answer, first answer first.

        Args:
            ids: Ids of the invited clients.
            round_index: Round, from 0.
            draw: This invitation's own source of randomness.
        """


@dataclass(frozen=True)
class ResponseShare(Responses):
    """Lets a random share p ~ U[low, high] of the invited clients answer (Xie et al., CDMA, 2023, Section 5).

    The share is drawn anew for every invitation.

    Args:
        low: Smallest share, 0 <= low <= high.
        high: Largest share <= 1.
    """

    low: float = 0.5
    high: float = 1.0

    def __post_init__(self) -> None:
        require(self, "low", "high")
        if not 0 <= self.low <= self.high <= 1:
            raise InvalidValueError(f"ResponseShare(low={self.low}, high={self.high}): expected 0 <= low <= high <= 1.")

    def arrivals(self, ids: list[int], round_index: int, draw: random.Random) -> list[int]:
        """Return ceil(p * invited) of the clients, in random order."""
        share = draw.uniform(self.low, self.high)
        return draw.sample(ids, math.ceil(round(share * len(ids), 9)))  # rounded, so that 0.07 of 100 is 7 and not 8


@dataclass(frozen=True)
class Devices(Responses):
    """Simulates devices, each of which is available with a probability and answers with a speed of its own.

    A client's availability is uniform in [low, high]. With ``day`` rounds a day it swings around this value by
    ``swing``, at an hour of the client's own. A client's median latency is log-normal over clients, and the latency of
    an answer is log-normal around the client's median. All of this is a function of the client's id, so nothing is
    stored for N clients.

    Args:
        low: Smallest availability, 0 <= low <= high.
        high: Largest availability <= 1.
        spread: Standard deviation of the logarithm of the median latency over clients.
        jitter: Standard deviation of the logarithm of one answer's latency.
        deadline: Answers that take longer, in units of the median client's latency, are not waited for; null for none.
        day: Number of rounds in a day, at least 2; null for no daily rhythm.
        swing: Amplitude of the daily rhythm, as a share of the client's availability, 0 <= swing <= 1.
        seed: Seed of the devices; equal seeds give equal devices.
    """

    low: float = 0.3
    high: float = 0.9
    spread: float = 0.5
    jitter: float = 0.2
    deadline: float | None = None
    day: int | None = None
    swing: float = 0.8
    seed: int = 0

    def __post_init__(self) -> None:
        require(self, "low", "high", "seed")
        if not 0 <= self.low <= self.high <= 1:
            raise InvalidValueError(f"Devices(low={self.low}, high={self.high}): expected 0 <= low <= high <= 1.")
        require(self, "spread", "jitter", at_least=0.0)
        require(self, "deadline", above=0.0, optional=True)
        require(self, "day", at_least=2, optional=True)
        require(self, "swing", at_least=0.0, at_most=1.0)

    def arrivals(self, ids: list[int], round_index: int, draw: random.Random) -> list[int]:
        """Return the clients that are available now and meet the deadline, fastest first."""
        times = []
        for client in ids:
            own = random.Random(derive_seed(self.seed, client))
            available, hour, median = own.uniform(self.low, self.high), own.random(), own.lognormvariate(0, self.spread)
            if self.day is not None:
                available *= 1 + self.swing * math.cos(2 * math.pi * (round_index / self.day + hour))
            latency = draw.lognormvariate(math.log(median), self.jitter)
            if draw.random() < available and (self.deadline is None or latency <= self.deadline):
                times.append((latency, client))
        return [client for _, client in sorted(times)]


@dataclass(frozen=True)
class FirstResponders(Participation):
    """Invites some clients and goes on with the first answers; late answers are dropped, never awaited.

    This is the SIWER rule of Xie et al. (CDMA, AAAI 2023). If too few clients answer, another cohort is invited; if
    this fails too often, the round is skipped. An invitation that is not answered still costs its download.

    Args:
        size: Number of clients invited.
        responses: Which clients answer, and in what order; null for the paper's share p ~ U[0.5, 1].
        first: Number of answers to wait for; null for all that come.
        at_least: Fewest answers to go on with, 1 <= at_least <= size.
        retries: Further invitations >= 0 in each phase of a round.
        reinvite: Whether every phase of a round invites clients of its own. If false, later phases invite the clients
            that the first phase invited last, of whom others may answer now.
    """

    size: int
    responses: Responses | None = None
    first: int | None = None
    at_least: int = 1
    retries: int = 3
    reinvite: bool = True

    def __post_init__(self) -> None:
        require(self, "size", "at_least")
        require(self, "first", optional=True)
        if self.responses is not None:
            require_instance("FirstResponders(responses", self.responses, Responses, "ResponseShare(0.5, 1.0)")
        if not 1 <= self.at_least <= self.size:
            raise InvalidValueError(
                f"FirstResponders(size={self.size}, at_least={self.at_least}): expected 1 <= at_least <= size."
            )
        if self.first is not None and self.first < self.at_least:
            raise InvalidValueError(
                f"FirstResponders(first={self.first}, at_least={self.at_least}): expected first >= at_least, or null."
            )
        require(self, "retries", at_least=0)

    def fewest(self, num_clients: int) -> int:
        """Return the smallest number of answers to go on with."""
        return self.at_least

    def expected(self, num_clients: int) -> float:
        """Return how many answers count at most: the first ones, or those of all clients that are invited at a time."""
        return float(self.size if self.first is None else min(self.first, self.size))

    def cohort(self, num_clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """Return the clients whose answers count; an empty list if too few answered every time."""
        return self.select(num_clients, seed, round_index, phase).ids

    def select(self, num_clients: int, seed: int, round_index: int, phase: int) -> Selection:
        """Invite clients until enough answer, or give the round up."""
        responses = ResponseShare() if self.responses is None else self.responses
        again = bool(phase) and not self.reinvite
        last = self.select(num_clients, seed, round_index, 0).num_contacted // self.size - 1 if again else 0
        for attempt in range(self.retries + 1):
            draw, invited = self._invited(num_clients, seed, round_index, phase, attempt)
            if again:
                _, invited = self._invited(num_clients, seed, round_index, 0, last + attempt)
            answered = responses.arrivals(invited, round_index, draw)[: self.first]
            if len(answered) >= self.at_least:
                return Selection(sorted(answered), self.size * (attempt + 1))
        return Selection([], self.size * (self.retries + 1))

    def recruit(self, num_clients: int, seed: int, round_index: int, phase: int) -> Recruitment:
        """Return whom to invite where clients answer for themselves, so that ``responses`` has no say.

        The cohorts are those of a simulation in which as many answer.
        """
        again = bool(phase) and not self.reinvite
        count = 2 * self.retries + 1 if again else self.retries + 1
        cohorts = (
            self._invited(num_clients, seed, round_index, 0 if again else phase, each)[1] for each in range(count)
        )
        return Recruitment(tuple(sorted(cohort) for cohort in cohorts), self.first, self.at_least, continues=again)

    def _invited(
        self, num_clients: int, seed: int, round_index: int, phase: int, attempt: int
    ) -> tuple[random.Random, list[int]]:
        """Draw the clients of an invitation; the generator goes on to draw who of them answers."""
        draw = random.Random(derive_seed(seed, round_index, phase, 0, attempt))
        return draw, draw.sample(range(num_clients), self.size)

    def check(self, num_clients: int) -> None:
        """Refuse a federation that is smaller than an invitation."""
        if self.size > num_clients:
            raise InvalidValueError(
                f"FirstResponders(size={self.size}): more are invited than the federation's {num_clients} clients. "
                f"Choose a size of {num_clients} or less (--data.participation.size=...)."
            )
