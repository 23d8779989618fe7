"""Asks clients until enough of them have answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from fedlightning.federation.protocol import Answer, Invitation, Request, Transport
from fedlightning.federation.server import expected
from fedlightning.participation import Recruitment


@dataclass(frozen=True)
class Heard:
    """Holds the answers of a phase.

    Attributes:
        answers: The answers, as they come or already there; whoever stops before the end closes it.
        invited: The clients they are of, in the order in which answers are added up.
    """

    answers: Iterator[Answer]
    invited: Sequence[int]


class Recruiter:
    """Carries out the invitations of one round.

    Where it is known who will answer, as in a simulation, answers pass through as they come. Elsewhere clients are
    invited until enough have answered; the answers of an invitation that too few followed are dropped.

    Attributes:
        contacted: Number of clients that the last phase sent its request to, whether or not they answered.
    """

    def __init__(self, transport: Transport, sleep: Callable[[float], None] = time.sleep) -> None:
        """Begin a round.

        Args:
            transport: Reaches the clients.
            sleep: Waits for so many seconds.
        """
        self.contacted = 0
        self._transport = transport
        self._sleep = sleep
        self._last = 0  # of the first phase's invitations, the one that enough have followed

    def ask(self, request: Request, invitation: Invitation) -> Heard | None:
        """Return the answers of a phase; None if too few clients answered."""
        if invitation.recruitment is not None:
            return self._recruited(request, invitation.recruitment)
        self.contacted = invitation.contacted
        if not invitation.answering:
            return None
        return Heard(self._transport.ask(request, invitation.client_ids), invitation.client_ids)

    def _recruited(self, request: Request, recruitment: Recruitment) -> Heard | None:
        self.contacted = 0
        start = self._last if recruitment.continues else 0
        for number, cohort in enumerate(recruitment.cohorts[start:], start):
            if number > start and recruitment.pause:
                self._sleep(recruitment.pause)
            self.contacted += len(cohort)
            answers = self._first(request, cohort, recruitment.first)
            if sum(len(answer.client_ids) for answer in answers) >= recruitment.at_least:
                self._last = self._last if request.stamp.phase else number
                return Heard((answer for answer in answers), cohort)
        return None

    def _first(self, request: Request, cohort: Sequence[int], first: int | None) -> list[Answer]:
        """Return the first answers of a cohort; those that come later are not waited for."""
        answers: list[Answer] = []
        heard = 0
        with closing(self._transport.ask(request, cohort)) as stream:  # type: ignore[type-var]
            for answer in expected(stream, request.stamp, cohort):
                answers.append(answer)
                heard += len(answer.client_ids)
                if first is not None and heard >= first:
                    break
        return answers
