"""Participation in a round: how a cohort is chosen, and which of its clients answer."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from dataclasses import dataclass

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require, require_instance


@dataclass(frozen=True)
class Selection:
    """Reports the outcome of an invitation.

    Attributes:
        ids: Ids of the clients whose answers count, ascending; empty if the round is to be skipped.
        num_contacted: Number of clients the server has sent its message to, whether or not they answer.
    """

    ids: list[int]
    num_contacted: int


@dataclass(frozen=True)
class Recruitment:
    """Says whom a server invites where nobody knows beforehand who will answer: clients on machines of their own.

    Attributes:
        cohorts: Ids of the clients to invite; the next ones each time that too few have answered.
        first: Number of answers to wait for; None for all that come in time.
        at_least: Fewest answers to go on with, at least 1.
        continues: Whether this phase begins with the cohort that the first phase of the round ended with.
        pause: Seconds between two invitations.
    """

    cohorts: tuple[list[int], ...]
    first: int | None = None
    at_least: int = 1
    continues: bool = False
    pause: float = 0.0


class Participation(ABC):
    """Chooses cohorts as a pure function of seed, round and phase."""

    @abstractmethod
    def cohort(self, num_clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """Return the ids of the cohort, ascending.

        Args:
            num_clients: N; ids run from 0 to N - 1.
            seed: Seed of the run.
            round_index: Round, from 0.
            phase: Phase of the round, from 0; each phase has a cohort of its own.
        """

    def select(self, num_clients: int, seed: int, round_index: int, phase: int) -> Selection:
        """Return the cohort and the number of clients that were invited.

        By default every invited client answers; rules with clients that do not answer override this method.
        """
        ids = self.cohort(num_clients, seed, round_index, phase)
        return Selection(ids, len(ids))

    def recruit(self, num_clients: int, seed: int, round_index: int, phase: int) -> Recruitment:
        """Return whom to invite where clients answer for themselves; by default the cohort, once.

        The round goes on with whoever of them answers in time.
        """
        return Recruitment((self.cohort(num_clients, seed, round_index, phase),))

    def fewest(self, num_clients: int) -> int:
        """Return the smallest number of clients that a round may have."""
        return len(self.cohort(num_clients, 0, 0, 0))

    def expected(self, num_clients: int) -> float:
        """Return the mean number of clients in a cohort, which unlike the number itself is no secret."""
        return float(len(self.cohort(num_clients, 0, 0, 0)))

    def check(self, num_clients: int) -> None:  # noqa: B027  # most rules serve any federation
        """Refuse a federation of N clients that this rule cannot serve.

        Raises:
            ValueError: If it cannot; the message names N and the size that this rule needs.
        """


@dataclass(frozen=True)
class Full(Participation):
    """Selects every client in every round."""

    def cohort(self, num_clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """Return all ids."""
        return list(range(num_clients))


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
class WaitForAll(Participation):
    """Asks the cohort of another rule again until all of its clients have answered.

    This is for clients on machines of their own, where an answer can be lost: a round then ends as in a simulation, in
    which every client answers, and so does the run. A client whose answer was lost sends the same one again. A round
    costs as much time as its slowest client, and waits for machines that are away; the server's deadline of a phase
    says when it asks again. In a simulation this is the other rule.

    Args:
        rule: Draws the cohort, such as ``Uniform(size=10)``; null for all clients.
        retries: Further times >= 0 that a cohort is asked before the round is skipped.
        pause: Seconds >= 0 between two times.
    """

    rule: Participation | None = None
    retries: int = 1000
    pause: float = 5.0

    def __post_init__(self) -> None:
        if self.rule is not None:
            require_instance("WaitForAll(rule", self.rule, Participation, "Uniform(size=10)")
        require(self, "retries", "pause", at_least=0.0)

    def cohort(self, num_clients: int, seed: int, round_index: int, phase: int) -> list[int]:
        """Return the cohort of the other rule."""
        return self._rule.cohort(num_clients, seed, round_index, phase)

    def select(self, num_clients: int, seed: int, round_index: int, phase: int) -> Selection:
        """Return what the other rule selects."""
        return self._rule.select(num_clients, seed, round_index, phase)

    def recruit(self, num_clients: int, seed: int, round_index: int, phase: int) -> Recruitment:
        """Return the same cohort many times, of whom all have to answer."""
        cohort = self._rule.cohort(num_clients, seed, round_index, phase)
        return Recruitment((self.retries + 1) * (cohort,), at_least=len(cohort), pause=self.pause)

    def check(self, num_clients: int) -> None:
        """Refuse what the other rule refuses, and a rule that invites others in place of clients that do not answer."""
        self._rule.check(num_clients)
        recruitment = self._rule.recruit(num_clients, 0, 0, 0)
        if len(recruitment.cohorts) > 1 or recruitment.first is not None:
            raise InvalidValueError(
                f"WaitForAll(rule={self._rule}): this rule goes on without some of the clients, so it has no cohort to "
                "wait for. Choose Uniform(size=...) or Full()."
            )

    @property
    def _rule(self) -> Participation:
        return Full() if self.rule is None else self.rule


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
