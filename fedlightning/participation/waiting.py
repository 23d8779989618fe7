"""Cohorts that are asked again until all of their clients have answered."""

from __future__ import annotations

from dataclasses import dataclass

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require, require_instance
from fedlightning.participation.base import Participation, Recruitment, Selection
from fedlightning.participation.draws import Full


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

    @property
    def keeps_virtual_time(self) -> bool:
        """Return whether the other rule does."""
        return self._rule.keeps_virtual_time

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

    def fewest(self, num_clients: int) -> int:
        """Return the smallest number of clients that a round of the other rule may have."""
        return self._rule.fewest(num_clients)

    def expected(self, num_clients: int) -> float | None:
        """Return what the other rule expects."""
        return self._rule.expected(num_clients)

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
