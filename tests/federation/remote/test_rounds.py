"""Rounds without data: the seeds and the cohorts of a simulation."""

from __future__ import annotations

import pytest

from fedlightning import algorithms as fl
from fedlightning.data import RoundLoader
from fedlightning.federation.remote.rounds import RemoteRounds
from fedlightning.participation import FirstResponders, Full, Uniform
from tests.support.small import regression_data


@pytest.mark.parametrize("algorithm", [fl.SCAFFOLD(0.1), fl.CDMA_ADA(0.1)])
@pytest.mark.parametrize("rule", [Full(), Uniform(2)])
def test_invitations_are_those_of_a_simulation(algorithm, rule):
    data = regression_data(participation=rule, rounds_per_epoch=4)
    here = RoundLoader(data, algorithm.phases, start=lambda: 8)
    there = RemoteRounds(4, len(algorithm.phases), rule, 4, seed=1, start=lambda: 8)
    assert len(there) == len(here) == 4
    for mine, theirs in zip(here, there, strict=True):
        assert (mine.index, len(mine.samples)) == (theirs.index, len(theirs.samples))
        assert theirs.cohorts == ()
        for cohort, invitation in zip(mine.cohorts, theirs.invitations, strict=True):
            assert invitation.seed == cohort.seed
            (invited,) = invitation.recruitment.cohorts
            assert invited == sorted(member.id for member in cohort.members)
            assert invitation.answering == cohort.answering


def test_rounds_go_to_the_device_and_back_with_their_invitations():
    (batch,) = RemoteRounds(9, 1, FirstResponders(3, retries=1), 1, seed=1)
    placed = batch.place(None, None)
    assert placed.invitations == batch.invitations
    assert [len(cohort) for cohort in placed.invitations[0].recruitment.cohorts] == [3, 3]


def test_a_checkpoint_need_not_say_where_rounds_begin():
    rounds = RemoteRounds(4, 1, Full(), 1, seed=1)
    rounds.load_state_dict(rounds.state_dict())
    assert [batch.index for batch in rounds] == [0]
