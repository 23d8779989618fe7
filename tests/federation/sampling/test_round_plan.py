"""Who takes part in a round, and with which samples."""

from __future__ import annotations

import pytest

from fedlightning.algorithms import Phase
from fedlightning.data import RoundLoader
from fedlightning.federation.sampling.round_plan import ProcessShare, RoundPlan
from fedlightning.participation import FirstResponders, Full, Uniform
from tests.support.four_clients import SIZES, everything_dealt, federation

MINIBATCHES = Phase(None, None, None)


def plan(data, *phases, share=None, architecture=lambda client: ""):
    return RoundPlan(data, phases or (MINIBATCHES,), share or ProcessShare(), architecture)


def test_minibatches_do_not_depend_on_who_else_is_there():
    whole = everything_dealt(federation(), 4)
    part = everything_dealt(federation(participation=Uniform(2)), 4)
    assert set(map(str, part)) < set(map(str, whole))


def test_local_epochs_make_as_many_steps_as_they_take():
    def steps(**options):
        return {member.id: len(member.index) for member in plan(federation(**options)).members(0, 0)}

    assert steps(local_epochs=2) == {0: 6, 1: 3, 2: 5, 3: 10}  # 2 n / 4, rounded up
    assert steps(local_epochs=0.5) == {0: 2, 1: 1, 2: 2, 3: 3}  # half of 12, 5, 9 and 20, in fours
    assert steps(local_epochs=0.01) == dict.fromkeys(range(4), 1)
    assert steps(local_epochs=1e-12) == dict.fromkeys(range(4), 1)  # a client without steps has no move to divide
    assert steps(local_epochs=1.1, batch_size=1)[3] == 22  # 1.1 * 20 in floating point is a little more
    assert steps(local_steps=7) == dict.fromkeys(range(4), 7)
    assert steps(batch_size=None, local_epochs=2) == dict.fromkeys(range(4), 2)


def test_half_an_epoch_is_half_of_the_samples_each_once():
    data = federation(local_epochs=0.5, batch_size=5)
    (member,) = (member for member in plan(data).members(0, 0) if member.id == 3)
    assert member.index.shape == (2, 5)
    assert len(set(member.index.flatten().tolist())) == 10


def test_there_is_no_part_of_a_whole():
    data = federation(batch_size=None, local_epochs=2)
    data.local_epochs = 0.5  # as a run sets it on a node
    with pytest.raises(
        ValueError, match=r"local_epochs=0\.5, batch_size=null: a client's whole data are one minibatch"
    ):
        plan(data)
    with pytest.raises(ValueError, match=r"local_epochs=1\.5, batch_size=null"):
        federation(batch_size=None, local_epochs=1.5)
    assert federation(batch_size=None, local_epochs=1.5, local_steps=2).local_steps == 2


def test_a_phase_may_ask_for_its_own_number_of_minibatches():
    members = plan(federation(), Phase(None, None, None, steps=2, draws=3)).members(0, 0)
    assert {member.index.shape for member in members} == {(6, 4)}


def test_a_phase_may_ask_for_all_data():
    data = federation()
    full, both = Phase(None, None, None, data="full"), Phase(None, None, None, data="both")
    for member in plan(data, full, both).members(0, 0):
        assert member.index.shape == (1, SIZES[member.id])
        assert member.whole is None
    for member in plan(data, full, both).members(0, 1):
        assert member.index.shape[1] == 4
        assert member.whole.tolist() == data.federation.partition[member.id].tolist()


def test_clients_of_one_architecture_stand_together():
    members = plan(federation(), architecture=lambda client: "ab"[client % 2]).members(0, 0)
    assert [(member.id, member.architecture) for member in members] == [(0, "a"), (2, "a"), (3, "b"), (1, "b")]


def test_clients_with_the_most_minibatches_come_first():
    members = plan(federation()).members(0, 0)
    counts = [len(member.index) for member in members]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts)) > 1


def test_phases_have_cohorts_of_their_own():
    rounds = plan(federation(participation=Uniform(2)), MINIBATCHES, MINIBATCHES)

    def ids(round_index, phase):
        return [member.id for member in rounds.members(round_index, phase)]

    assert any(ids(round_index, 0) != ids(round_index, 1) for round_index in range(20))


class AnswersOnce(Full):
    """Nobody answers in the first phase of round 1."""

    def cohort(self, num_clients, seed, round_index, phase):
        return [] if (round_index, phase) == (1, 0) else super().cohort(num_clients, seed, round_index, phase)


def test_a_phase_after_one_that_nobody_answered_has_no_clients():
    rounds = plan(federation(participation=AnswersOnce()), MINIBATCHES, MINIBATCHES)
    assert [len(rounds.members(round_index, 1)) for round_index in (0, 1, 2)] == [4, 0, 4]
    skipped = rounds.cohort(1, 1, source=None)
    assert (skipped.answering, skipped.contacted) == (0, 4)


def test_processes_get_equal_shares_or_the_clients_they_own():
    ids = [1, 2, 4, 5, 7]
    assert [ProcessShare(rank, 2).of(ids, 8) for rank in (0, 1)] == [[1, 2], [4, 5, 7]]
    assert [ProcessShare(rank, 2, by_owner=True).of(ids, 8) for rank in (0, 1)] == [[2, 4], [1, 5, 7]]
    assert ProcessShare().of(ids, 8) == ids


def test_processes_share_a_cohort():
    data = federation(participation=Uniform(3))
    whole = [b.cohorts[0].client_ids for b in RoundLoader(data)]
    parts = [[b.cohorts[0].client_ids for b in RoundLoader(data, rank=rank, world_size=2)] for rank in (0, 1)]
    for all_ids, first, second in zip(whole, *parts, strict=True):
        assert sorted(first + second) == sorted(all_ids)
    few = (Uniform(1), FirstResponders(size=3, at_least=1))
    for rule in few:
        with pytest.raises(
            ValueError, match=r"\): a round may have 1 clients, too few for 2 processes. Let more take part"
        ):
            RoundLoader(federation(participation=rule), world_size=2)
    RoundLoader(federation(participation=FirstResponders(size=3, at_least=2)), world_size=2)

    class Shrinking(Full):
        def cohort(self, clients, seed, round_index, phase):
            return list(range(clients)) if round_index == 0 else [0] if round_index == 1 else []

    rounds = iter(RoundLoader(federation(participation=Shrinking()), world_size=2))
    next(rounds)
    with pytest.raises(ValueError, match=r"a round may have 1 clients, too few for 2 processes"):
        next(rounds)
    alone = [len(batch.cohorts[0]) for batch in RoundLoader(federation(participation=Shrinking()))]
    assert alone[1:3] == [1, 0]  # nobody at all is a round to be skipped
