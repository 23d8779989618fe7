"""Nodes that die, fail, lie or repeat themselves: left out and named, and nothing else disturbed."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import count

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.channel import AdaptiveClip, Channel, Clip
from fedlightning.federation.protocol import Invitation, Precision, Stamp
from fedlightning.federation.remote.enrolment import EnrolmentError
from fedlightning.federation.remote.failure import Failure, encode_failure
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.rounds import RemoteRounds
from fedlightning.federation.remote.silence import NodeError, Silence
from fedlightning.federation.sampling.round_loader import RoundLoader
from fedlightning.oracle import Autocast, Sequential
from fedlightning.participation import FirstResponders, ResponseShare, Uniform, WaitForAll
from tests.support.federations import CLIENTS, loop_for, quadratic, rounds_of
from tests.support.lies import LIES, NAN, numbers, run_quietly, telling, with_array, without
from tests.support.nodes import NODES, NUMBERS, FederationOfNodes, Wires, assert_same_states, nodes_of
from tests.support.transforms import Halved

ROUNDS = 3
LIAR = 100  # has client 0 alone
ALGORITHMS = {"SCAFFOLD": fl.SCAFFOLD(0.05), "CDMA_ADA": fl.CDMA_ADA(0.05), "FedSkip": fl.FedSkip(0.05)}


def federation(algorithm, folder, channels=None, **options):
    services = nodes_of(quadratic(algorithm), Sequential(), NUMBERS, NODES, folder, channels=channels)
    carrier, task = Wires(services), quadratic(algorithm)
    return carrier, FederationOfNodes(task, CLIENTS, Sequential(), carrier, services, channels=channels, **options)


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_node_that_lies_is_left_out_and_named(name, lie, tmp_path):
    algorithm, (change, why) = ALGORITHMS[name], LIES[lie]
    carrier, there = federation(algorithm, tmp_path)
    here = loop_for(quadratic(algorithm), Sequential())
    first, *rest = rounds_of(algorithm, ROUNDS)
    for loop in (here, there):
        loop.run(first, Autocast("cpu"))
    carrier.tamper[LIAR] = lambda packet: [telling(change)(packet)]
    for batch in rest:
        here.run(without(batch, 0), Autocast("cpu"))
        said = run_quietly(there, batch)
        assert len(said) == len(batch.cohorts)
        for message in said:
            assert "node node-100 (client 0)" in message
            assert "was left out: " in message
            with pytest.raises(ValueError, match=why):
                raise ValueError(message)
    assert torch.equal(here.point, there.point)
    assert_same_states(here, there, tmp_path, NODES)


CHANNEL_LIES = {
    "bits": (
        [Clip(0.5), Halved()],
        lambda part, name: with_array(part, "bits", torch.tensor([1e12]).double()),
        r"takes 1e\+12 bits",
    ),
    "reports": (
        [Clip(0.5), Halved()],
        lambda part, name: with_array(part, "reports/1.held", torch.ones(2)),
        "expected one real number",
    ),
    "count below the norm": (
        [AdaptiveClip(0.5, count_noise=1.0, initial=0.5)],
        lambda part, name: with_array(part, "reports/0.below", torch.tensor([1e6]).double()),
        r"'0\.below' is 1e\+06; expected -0\.5 or 0\.5",
    ),
    "no clip": (
        [Clip(0.5)],
        lambda part, name: with_array(part, name, 0 * numbers(part, name) + 10.0),
        "to which the channel clips",
    ),
}


@pytest.mark.parametrize("lie", CHANNEL_LIES)
def test_a_node_that_lies_about_its_channel_is_left_out_and_named(lie, tmp_path):
    algorithm, (transforms, change, why) = ALGORITHMS["SCAFFOLD"], CHANNEL_LIES[lie]
    channel = Channel(client=transforms)
    carrier, there = federation(algorithm, tmp_path, channel)
    here = loop_for(quadratic(algorithm), Sequential(), channels=channel)
    carrier.tamper[LIAR] = lambda packet: [telling(change)(packet)]
    for batch in rounds_of(algorithm, 2):
        here.run(without(batch, 0), Autocast("cpu"))
        with pytest.raises(ValueError, match=why):
            raise ValueError(run_quietly(there, batch)[0])
    assert torch.equal(here.point, there.point)
    public, same = (loop.server.reception.kept.public for loop in (here, there))
    assert all(torch.equal(value, same[key]) for key, value in public.items())
    assert_same_states(here, there, tmp_path, NODES)


@pytest.mark.parametrize("name", ["SCAFFOLD", "CDMA_ADA"])
def test_nan_of_a_node_is_left_out_as_in_a_simulation(name, tmp_path):
    algorithm = ALGORITHMS[name]
    carrier, there = federation(algorithm, tmp_path)
    carrier.tamper[LIAR] = lambda packet: [telling(NAN[0])(packet)]
    here = loop_for(quadratic(algorithm), Sequential())
    said = []
    for batch in rounds_of(algorithm, ROUNDS):
        here.run(without(batch, 0), Autocast("cpu"))
        said += run_quietly(there, batch)
    assert len(said) == 1
    assert said[0].startswith("NaN or infinite numbers came from client 0: left out of the mean")
    assert torch.equal(here.point, there.point)
    assert_same_states(here, there, tmp_path, NODES)


def test_a_node_that_logs_something_else_spoils_no_round(tmp_path):
    def boasting(part, name):
        added = with_array(part, "tally/train_accuracy", torch.ones(1))
        return replace(added, values={**added.values, "tally": [*part.values["tally"], "train_accuracy"]})

    algorithm = ALGORITHMS["SCAFFOLD"]
    carrier, there = federation(algorithm, tmp_path)
    here = loop_for(quadratic(algorithm), Sequential())
    first, *rest = rounds_of(algorithm, ROUNDS)
    for loop in (here, there):
        loop.run(first, Autocast("cpu"))
    carrier.tamper[LIAR] = lambda packet: [telling(boasting)(packet)]
    for batch in rest:
        here.run(batch, Autocast("cpu"))
        (said,) = run_quietly(there, batch)
        assert (
            "what is logged of client 0, from node node-100 (client 0), was left out: it has ['train_accuracy', "
            in said
        )
    assert torch.equal(here.point, there.point)
    assert_same_states(here, there, tmp_path, NODES)


@pytest.mark.parametrize("name", ["SCAFFOLD", "CDMA_ADA"])
def test_a_round_that_overflows_is_taken_back_everywhere(name, tmp_path):
    algorithm = ALGORITHMS[name]
    carrier, there = federation(algorithm, tmp_path)
    here = loop_for(quadratic(algorithm), Sequential())
    first, second, third = rounds_of(algorithm, 3)
    for loop in (here, there):
        loop.run(first, Autocast("cpu"))
    before = there.point.clone()
    carrier.tamper[LIAR] = lambda packet: [telling(NAN[0])(packet)]
    result = there.run(second, Autocast("cpu", scale=1024.0), undo_overflow=True)
    assert (result.undone, result.overflow) == (True, True)
    assert torch.equal(there.point, before)
    carrier.tamper.clear()
    for batch in (second, third):
        for loop in (here, there):
            loop.run(batch, Autocast("cpu"))
    assert torch.equal(here.point, there.point)
    assert_same_states(here, there, tmp_path, NODES)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_answers_that_come_twice_or_late_change_nothing(name, tmp_path):
    algorithm, former = ALGORITHMS[name], []

    def repeated(packet):
        if packet.kind != "answers":
            return [packet]
        former.append(packet)
        return [former[0], packet, packet]

    carrier, there = federation(algorithm, tmp_path)
    carrier.tamper[LIAR] = repeated
    here = loop_for(quadratic(algorithm), Sequential())
    said = []
    for batch in rounds_of(algorithm, ROUNDS):
        here.run(batch, Autocast("cpu"))
        said += run_quietly(there, batch)
    assert any("came twice" in each for each in said)
    assert any("it answers phase 1 of round 1" in each for each in said)
    assert torch.equal(here.point, there.point)
    assert_same_states(here, there, tmp_path, NODES)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_dead_node_misses_rounds_and_means_over_all_stay_exact(name, tmp_path):
    algorithm = ALGORITHMS[name]
    carrier, there = federation(algorithm, tmp_path)
    here = loop_for(quadratic(algorithm), Sequential())
    batches = rounds_of(algorithm, 4)
    for index, batch in enumerate(batches):
        if index in (1, 2):
            carrier.dead.add(101)
            here.run(without(batch, 1, 4), Autocast("cpu"))
        else:
            carrier.dead.discard(101)
            here.run(batch, Autocast("cpu"))
        there.run(batch, Autocast("cpu"))
        assert torch.equal(here.point, there.point)
    assert_same_states(here, there, tmp_path, NODES)


def test_a_node_that_goes_on_failing_stops_the_run(tmp_path):
    algorithm = ALGORITHMS["SCAFFOLD"]
    carrier, there = federation(algorithm, tmp_path, silence=Silence(tolerance=2))
    first, second, third = rounds_of(algorithm, 3)
    there.run(first, Autocast("cpu"))
    carrier.tamper[LIAR] = lambda packet: [encode_failure(Failure("ObjectiveError", "no such sensor"))]
    said = run_quietly(there, second)
    assert len(said) == 1
    assert said[0] == "Round 2, phase 1: node node-100 (client 0) did not answer: ObjectiveError: no such sensor."
    before = there.point.clone()
    with pytest.raises(
        NodeError, match=r"Round 3, phase 1: node node-100 \(client 0\) has failed 2 times in a row: Obj"
    ):
        there.run(third, Autocast("cpu"))
    assert torch.equal(there.point, before)
    carrier.tamper.clear()
    here = loop_for(quadratic(algorithm), Sequential())
    for batch in (first, without(second, 0), third):
        here.run(batch, Autocast("cpu"))
    there.run(third, Autocast("cpu"))  # as a run that goes on would
    assert torch.equal(here.point, there.point)


def test_a_packet_that_is_none_is_named(tmp_path):
    algorithm = ALGORITHMS["SCAFFOLD"]
    carrier, there = federation(algorithm, tmp_path)
    first, second, _ = rounds_of(algorithm, 3)
    there.run(first, Autocast("cpu"))
    for wrong in (Packet("answers"), Packet("what"), Packet("failure")):
        carrier.tamper[LIAR] = lambda packet, wrong=wrong: [wrong]
        assert any("node-100 (client 0)" in each for each in run_quietly(there, second))


@pytest.mark.parametrize("name", ["SCAFFOLD", "CDMA_ADA"])
def test_first_responders_are_those_who_answer_first(name, tmp_path):
    """The same rounds as in a simulation whose clients answer in the order in which these nodes do."""
    algorithm = ALGORITHMS[name]
    _, there = federation(algorithm, tmp_path)
    here = loop_for(quadratic(algorithm), Sequential())
    rule = FirstResponders(5, ResponseShare(1.0, 1.0), first=3, at_least=2)
    data = NUMBERS
    plan = RoundLoader(data, algorithm.phases).plan
    (batch, *_) = rounds_of(algorithm, 1)
    for index in range(ROUNDS):
        invitations, heard = [], []
        for phase in range(len(algorithm.phases)):
            cohort = plan.cohort(index, phase, batch.cohorts[0].source)
            recruitment = rule.recruit(CLIENTS, 0, index, phase)
            invitations.append(Invitation([], 1, 0, cohort.seed, recruitment))
            asked = there.remote.directory.by_node(recruitment.cohorts[0]) if index else by_node(recruitment.cohorts[0])
            first = [client for node in reversed(list(asked)) for client in asked[node]][:3]
            members = plan.members_of(sorted(first), index, phase)
            heard.append(replace(batch.cohorts[0], members=members, seed=cohort.seed, answering=3, contacted=5))
        here.run(type(batch)(index, tuple(heard), batch.samples), Autocast("cpu"))
        there.loop.run(index, invitations, precision=Precision())
        assert torch.equal(here.point, there.point)
    assert here.server.traffic == there.server.traffic
    assert_same_states(here, there, tmp_path, NODES)


def by_node(client_ids):
    found = {}
    for client in client_ids:
        found.setdefault(next(node for node, own in enumerate(NODES) if client in own), []).append(client)
    return found


def test_a_round_in_which_nobody_answers_is_skipped(tmp_path):
    algorithm = ALGORITHMS["SCAFFOLD"]
    carrier, there = federation(algorithm, tmp_path)
    first, _, _ = rounds_of(algorithm, 3)
    there.run(first, Autocast("cpu"))
    before = there.point.clone()
    carrier.dead |= {100, 101, 102}
    recruitment = FirstResponders(3, at_least=1, retries=1).recruit(CLIENTS, 0, 1, 0)
    with pytest.warns(RuntimeWarning, match="Round 2 was skipped: of 6 clients invited, too few answered"):
        result = there.loop.run(1, [Invitation([], 1, 0, 1, recruitment)])
    assert result.undone
    assert torch.equal(there.point, before)
    assert there.remote.ledger.standing(0).base.round == Stamp(0, 0).round


@pytest.mark.parametrize("name", ALGORITHMS)
def test_partial_cohorts_end_where_the_simulation_does_though_answers_are_lost(name, tmp_path):
    """Each node loses every second of its answers, and is asked again for the same."""
    algorithm, rule = ALGORITHMS[name], WaitForAll(Uniform(size=4), retries=9, pause=0.0)
    carrier, there = federation(algorithm, tmp_path)
    here = loop_for(quadratic(algorithm), Sequential())
    lost = []

    def losing():
        counts = count(1)
        return lambda packet: [packet] if packet.kind != "answers" or next(counts) % 2 == 0 else lost.append(1) or []

    carrier.tamper = {node: losing() for node in carrier.services}
    invited = RemoteRounds(CLIENTS, len(algorithm.phases), rule, 6, seed=0)
    for batch, there_invited in zip(rounds_of(algorithm, 6, size=4), invited, strict=True):
        here.run(batch, Autocast("cpu"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Round .* did not answer")
            assert not there.loop.run(batch.index, there_invited.invitations).undone
    assert len(lost) > 6
    assert torch.equal(there.point, here.point)
    assert_same_states(here, there, tmp_path, NODES)


def test_a_roster_that_cannot_be_read_is_named_with_its_node(tmp_path):
    carrier, there = federation(ALGORITHMS["SCAFFOLD"], tmp_path)

    def damaged(packet):
        return [replace(packet, arrays={}) if packet.kind == "roster" else packet]

    carrier.tamper[101] = damaged
    with pytest.raises(
        EnrolmentError, match=r"node node-101 \(clients 1, 4\) cannot join: .* lacks the array 'samples'"
    ):
        there.remote.join(Precision())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_server_that_resumes_ends_where_the_undisturbed_one_does(name, tmp_path):
    """Also from an older checkpoint, and with nodes that have gone on since."""
    algorithm = ALGORITHMS[name]
    batches = rounds_of(algorithm, 6, size=4)
    here = loop_for(quadratic(algorithm), Sequential())
    for batch in batches:
        here.run(batch, Autocast("cpu"))
    carrier, there = federation(algorithm, tmp_path)
    stored = []
    for batch in batches[:5]:
        there.run(batch, Autocast("cpu"))
        stored.append(({**there.server.state_dict(), "buffers": there.server.buffers}, there.remote.checkpoint()))
    carrier.received.clear()
    for index in (3, 4):
        state, clients = stored[index]
        later = FederationOfNodes(quadratic(algorithm), CLIENTS, Sequential(), carrier, there.services)
        later.server.resume(
            later.server.stored_state(state, later.server.state), there.server.traffic.copy(), state["buffers"]
        )
        later.remote.resume(clients)
        for batch in batches[index + 1 :]:
            later.run(batch, Autocast("cpu"))
        assert torch.equal(later.point, here.point)
        assert len(list(tmp_path.glob("*/*"))) == len(NODES) * 3  # one federation, the lock, and the key of digests
    assert_same_states(here, later, tmp_path, NODES)


def test_a_checkpoint_that_nodes_have_left_behind_is_refused(tmp_path):
    algorithm = ALGORITHMS["SCAFFOLD"]
    carrier, there = federation(algorithm, tmp_path)
    batches = rounds_of(algorithm, 6)
    stored = []
    for batch in batches[:5]:
        there.run(batch, Autocast("cpu"))
        stored.append(there.remote.checkpoint())
    later = FederationOfNodes(quadratic(algorithm), CLIENTS, Sequential(), carrier, there.services)
    later.remote.resume(stored[0])
    later.server.join(later.remote.join(Precision()))
    recruitment = FirstResponders(6, retries=0).recruit(CLIENTS, 0, 1, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = later.loop.run(1, [Invitation([], 1, 0, 1, recruitment)])
    said = [str(each.message) for each in caught]
    assert len(said) == len(NODES) + 1
    assert any(
        "StoreError: The server goes on from the state of client 0 after round 1, phase 1" in each for each in said
    )
    assert result.undone
