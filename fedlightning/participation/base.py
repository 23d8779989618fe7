"""The contract of a rule by which clients take part in a round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from fedlightning.core.arrivals import Arrivals


@dataclass(frozen=True)
class Selection:
    """Reports the outcome of an invitation.

    Attributes:
        ids: Ids of the clients whose answers count, ascending; empty if the round is to be skipped.
        num_contacted: Number of clients the server has sent its message to, whether or not they answer.
        seconds: Virtual seconds that the phase takes; None where no virtual clock runs.
        arrivals: From which models the clients started, in an asynchronous round; None in all others.
    """

    ids: list[int]
    num_contacted: int
    seconds: float | None = None
    arrivals: Arrivals | None = None


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

    @property
    def keeps_virtual_time(self) -> bool:
        """Return whether rounds take virtual seconds, which only a simulation has."""
        return False

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

    def expected(self, num_clients: int) -> float | None:
        """Return by what sums with noise are divided in every round, as the number of answers would tell something.

        It is the mean number of clients that are asked; None, by default, for the number asked in each round.
        """
        return None

    def check(self, num_clients: int) -> None:  # noqa: B027  # most rules serve any federation
        """Refuse a federation of N clients that this rule cannot serve.

        Raises:
            ValueError: If it cannot; the message names N and the size that this rule needs.
        """
