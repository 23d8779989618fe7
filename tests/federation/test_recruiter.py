"""Clients are invited until enough have answered, and late answers are not waited for."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms.base import Point
from fedlightning.federation.protocol import Answer, Invitation, Request, Stamp
from fedlightning.federation.recruiter import Recruiter
from fedlightning.participation import Recruitment

REQUESTS = [Request(Stamp(0, phase), 1, None, torch.zeros(1), torch.zeros(0)) for phase in range(2)]


class Answering:
    """A transport to clients of whom only some answer, slowest last."""

    def __init__(self, *awake):
        self.awake, self.asked, self.computed, self.closed = awake, [], [], 0

    def ask(self, request, invited):
        self.asked.append(list(invited))
        try:
            for client in self.awake:
                if client in invited:
                    self.computed.append(client)
                    yield Answer(request.stamp, [client], Point(torch.zeros(1, 1)), torch.zeros(1, 0))
        finally:
            self.closed += 1


def recruit(transport, phase=0, recruiter=None, **rule):
    recruiter = Recruiter(transport) if recruiter is None else recruiter
    invitation = Invitation([], 1, 0, 1, Recruitment(([0, 1, 2], [3, 4, 5], [2, 3, 6]), **rule))
    heard = recruiter.ask(REQUESTS[phase], invitation)
    return recruiter, None if heard is None else [each.client_ids[0] for each in heard.answers]


def test_the_first_answers_count_and_nobody_waits_for_more():
    transport = Answering(2, 0, 1)
    recruiter, heard = recruit(transport, first=2)
    assert (heard, recruiter.contacted) == ([2, 0], 3)
    assert (transport.computed, transport.closed) == ([2, 0], 1)


def test_others_are_invited_if_too_few_answer():
    transport = Answering(5, 3, 0)
    recruiter, heard = recruit(transport, at_least=2)
    assert (heard, recruiter.contacted) == ([5, 3], 6)
    assert transport.asked == [[0, 1, 2], [3, 4, 5]]


def test_a_phase_is_given_up_if_too_few_answer_every_time():
    recruiter, heard = recruit(Answering(0, 4), at_least=2)
    assert (heard, recruiter.contacted) == (None, 9)


def test_between_two_invitations_there_is_a_pause():
    slept = []
    transport = Answering(5)
    _, heard = recruit(transport, recruiter=Recruiter(transport, slept.append), pause=2.5)
    assert (heard, slept) == ([5], [2.5])


@pytest.mark.parametrize(("continues", "asked"), [(True, [[3, 4, 5]]), (False, [[0, 1, 2], [3, 4, 5]])])
def test_a_later_phase_may_go_on_with_the_clients_of_the_first(continues, asked):
    transport = Answering(4)
    recruiter, heard = recruit(transport)
    assert heard == [4]
    transport.asked.clear()
    _, heard = recruit(transport, 1, recruiter, continues=continues)
    assert (heard, transport.asked, recruiter.contacted) == ([4], asked, 3 * len(asked))


def test_where_it_is_known_who_answers_answers_pass_as_they_come():
    transport = Answering(1, 0)
    recruiter = Recruiter(transport)
    heard = recruiter.ask(REQUESTS[0], Invitation([0, 1], 2, 5, 1))
    assert transport.computed == []
    assert ([each.client_ids[0] for each in heard.answers], heard.invited) == ([1, 0], [0, 1])
    assert recruiter.contacted == 5
    assert recruiter.ask(REQUESTS[0], Invitation([], 0, 5, 1)) is None
