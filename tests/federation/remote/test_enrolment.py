"""Which node holds which clients: complete before the first round, and nothing in it that does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import fedlightning
from fedlightning.algorithms import SCAFFOLD
from fedlightning.federation.protocol import Parameter, Precision, Roster
from fedlightning.federation.remote.carrier import Delivery
from fedlightning.federation.remote.enrolment import Directory, EnrolmentError, merged
from fedlightning.federation.remote.failure import Failure, encode_failure
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.roster_codec import Enrolment, encode_enrolment

PARAMETERS = (Parameter("w", (3,), torch.float32), Parameter("b", (), torch.float32))
RIGHT = Enrolment(
    [0], torch.tensor([5]), ["d0"], PARAMETERS, "fedlightning.algorithms.scaffold:SCAFFOLD", fedlightning.__version__
)


def holding(*client_ids, samples=5, **changes):
    own = {"samples": torch.full((len(client_ids),), samples), "data": [f"d{each}" for each in client_ids]}
    return replace(RIGHT, client_ids=list(client_ids), **{**own, **changes})


class Nodes:
    """A carrier to nodes that enrol, and a clock that goes on with every look for nodes."""

    def __init__(self, enrolments):
        self.enrolments, self.asked, self.time = enrolments, [], 0.0

    def nodes(self):
        return {node: f"node-{node}" for node in self.enrolments}

    def exchange(self, packets, group, seconds):
        for node in packets:
            self.asked.append(node)
            found = self.enrolments[node]
            if found is None:
                yield Delivery(node, None, "it is dead")
            else:
                yield Delivery(node, found if isinstance(found, Packet) else encode_enrolment(found))

    def clock(self):
        self.time += 1.0
        return self.time


def directory(carrier, num_clients=3, seconds=2.5):
    return Directory(carrier, num_clients, SCAFFOLD(0.1), PARAMETERS, seconds, pause=0.0, clock=carrier.clock)


def test_clients_are_found_at_their_nodes():
    found = directory(Nodes({7: holding(2, 0), 9: holding(1, samples=8)}))
    found.complete()
    assert found.by_node([0, 1, 2]) == {7: [0, 2], 9: [1]}
    assert found.samples.tolist() == [5, 8, 5]
    assert found.nodes == [7, 9]
    assert found.name(7) == "node node-7 (clients 0, 2)"
    assert found.begins


def test_the_server_waits_for_nodes_that_start_later():
    carrier = Nodes({7: holding(0, 1)})
    original = carrier.clock

    def later():
        carrier.enrolments[9] = holding(2)
        return original()

    carrier.clock = later
    found = directory(carrier)
    found.complete()
    assert found.by_node([2]) == {9: [2]}
    assert carrier.asked == [7, 9]


def test_clients_that_are_nowhere_are_named():
    with (
        pytest.warns(RuntimeWarning, match="Node node-8 did not enrol: it is dead. It is asked again") as warned,
        pytest.raises(
            EnrolmentError,
            match=r"2 of 3 clients are at no node after 2\.5 seconds: 1, 2\. Start their nodes.* did not enrol: it is",
        ),
    ):
        directory(Nodes({7: holding(0), 8: None})).complete()
    assert len(warned) == 1


def test_a_resumed_server_waits_for_the_first_node():
    """A link that was started again has no node for some seconds."""
    carrier = Nodes({})
    found = directory(carrier)
    found.resume(torch.tensor([5, 5, 5]), {})
    with pytest.raises(EnrolmentError, match=r"3 of 3 clients are at no node after 2\.5 seconds"):
        found.complete()
    original = carrier.clock

    def later():
        carrier.enrolments[7] = holding(1)
        return original()

    carrier.clock = later
    found = directory(carrier)
    found.resume(torch.tensor([5, 5, 5]), {})
    found.complete()
    assert found.nodes == [7]


def test_a_node_that_enrols_at_last_is_named_no_more():
    carrier = Nodes({7: holding(0), 8: None})
    found = directory(carrier)
    with pytest.warns(RuntimeWarning, match="node-8 did not enrol"):
        found.look_for_nodes(begins=True)
    carrier.enrolments[8] = holding(1)
    with pytest.raises(EnrolmentError, match=r"1 of 3 clients .* nodes node-7, node-8\.$"):
        found.complete()


@pytest.mark.parametrize(
    ("precision", "numbers"),
    [(Precision(torch.bfloat16), "torch.bfloat16"), (Precision(), "the numbers of its parameters")],
)
def test_a_precision_of_a_nodes_own_is_said(precision, numbers):
    with pytest.warns(RuntimeWarning, match=f"Node node-8 evaluates objectives in {numbers} by its own config") as said:
        directory(Nodes({7: holding(0, 1), 8: holding(2, precision=precision)})).complete()
    assert len(said) == 1


@pytest.mark.parametrize(
    ("enrolment", "why"),
    [
        (holding(3), "it has client 3; the federation has clients 0 to 2"),
        (holding(1, 1), "it has client 1, which"),
        (holding(1, version="0.0"), r"it has fedlightning 0\.0, the server"),
        (holding(1, algorithm="a:B"), "it runs a:B, the server fedlightning"),
        (holding(1, parameters=PARAMETERS[:1]), "it lacks the parameter 'b'. Give it the server's task"),
        (holding(1, parameters=PARAMETERS[::-1]), "in another order"),
        (holding(1, parameters=(PARAMETERS[0], Parameter("c", (), torch.float32))), "has the parameter 'c'"),
        (
            holding(1, parameters=(Parameter("w", (4,), torch.float64), PARAMETERS[1])),
            r"'w' is torch.float64 \[4\], the server's torch.float32 \[3\]",
        ),
        (holding(1, samples=0), r"numbers of samples \[0\]"),
        (replace(holding(1), samples=torch.ones(2)), "numbers of samples"),
        *(
            (replace(holding(1), samples=torch.tensor([wrong])), "numbers of samples")
            for wrong in (torch.nan, torch.inf, 2.7, True, 2**62)
        ),
        (holding(1, data=[]), r"it has 0 digests of data for its clients \[1\]"),
        (Packet("enrolment"), "Node node-9 cannot enrol"),
    ],
)
def test_a_node_that_does_not_fit_is_refused_before_the_first_round(enrolment, why):
    with pytest.raises(EnrolmentError, match=why):
        directory(Nodes({7: holding(0), 9: enrolment, 8: holding(2)})).complete()


def test_a_client_is_at_one_node():
    with pytest.raises(
        EnrolmentError, match="Node node-9 does not fit the federation: it has client 0, which node-7 has"
    ):
        directory(Nodes({7: holding(0), 9: holding(0)})).complete()


def test_a_node_that_does_not_fit_later_takes_no_part():
    carrier = Nodes({7: holding(0), 8: holding(1, 2)})
    found = directory(carrier)
    found.complete()
    del carrier.enrolments[8]
    carrier.enrolments[9] = holding(1, 2, version="0.0")
    with pytest.warns(RuntimeWarning, match=r"fedlightning 0\.0, .* It takes no part\."):
        found.look_for_nodes()
    assert found.by_node([0, 1, 2]) == {7: [0]}
    carrier.enrolments[9] = holding(1, 2)
    found.look_for_nodes()
    assert found.by_node([0, 1, 2]) == {7: [0], 9: [1, 2]}
    asked = list(carrier.asked)
    found.look_for_nodes()
    assert carrier.asked == asked  # nothing is left to find out


def test_a_federation_that_goes_on_does_not_wait_for_nodes_that_are_away():
    found = directory(Nodes({7: holding(0)}))
    found.resume(torch.tensor([5, 6, 7]), {})
    found.complete()
    assert found.by_node([0, 1, 2]) == {7: [0]}
    assert found.samples.tolist() == [5, 6, 7]
    assert not found.begins
    with pytest.raises(EnrolmentError, match="holds a federation of 2 clients, the server was started for 3"):
        found.resume(torch.tensor([5, 6]), {})


def test_a_client_comes_back_with_the_data_it_had():
    found = directory(Nodes({7: holding(0)}))
    found.resume(torch.tensor([4, 6, 7]), {})
    with pytest.raises(EnrolmentError, match="client 0 has 5 samples, and had 4 when the federation began"):
        found.complete()


def test_a_client_with_other_data_is_refused_at_a_resume():
    first = directory(Nodes({7: holding(0, 1)}), num_clients=2)
    first.complete()
    assert first.data == {0: "d0", 1: "d1"}
    later = directory(Nodes({7: holding(0, 1, data=["d0", "other"])}), num_clients=2)
    later.resume(first.samples, first.data)
    with pytest.raises(EnrolmentError, match=r"node-7 .* its client 1 has other data than .* Give it the data of then"):
        later.complete()


def test_a_node_that_comes_back_with_other_data_takes_no_part():
    carrier = Nodes({7: holding(0), 9: holding(1)})
    found = directory(carrier, num_clients=2)
    found.complete()
    before = carrier.enrolments.pop(9)
    found.look_for_nodes()
    carrier.enrolments[9] = holding(1, data=["other"])
    with pytest.warns(RuntimeWarning, match=r"client 1 has other data .* It takes no part\."):
        found.look_for_nodes()
    assert found.by_node([0, 1]) == {7: [0]}
    carrier.enrolments[9] = holding(1, samples=7)  # the same digest
    with pytest.warns(RuntimeWarning, match=r"client 1 has 7 samples, and had 5 .* It takes no part\."):
        found.look_for_nodes()
    carrier.enrolments[9] = replace(holding(1), samples=torch.tensor([torch.nan]))
    with pytest.warns(RuntimeWarning, match=r"numbers of samples \[nan\].* It takes no part\."):
        found.look_for_nodes()
    assert found.samples.tolist() == [5, 5]
    carrier.enrolments[9] = before
    found.look_for_nodes()
    assert found.by_node([0, 1]) == {7: [0], 9: [1]}


def rosters(found, *given):
    return {found.name(node): roster for node, roster in zip(found.nodes, given, strict=False)}


def test_nodes_agree_on_what_the_objective_changes():
    found = directory(Nodes({7: holding(0), 9: holding(1, 2, samples=8)}))
    found.complete()
    one = Roster(torch.tensor([5]), ("m",), torch.zeros(2), 0.5, PARAMETERS, ("m", "own"))
    joined = merged(rosters(found, one, one), found)
    assert joined.samples.tolist() == [5, 8, 8]
    assert (joined.buffers, joined.start_loss, joined.parameters) == (("m",), 0.5, PARAMETERS)
    for other, why in (
        (replace(one, changed_buffers=("m",)), "changes buffer 'own' at one of node node-7"),
        (replace(one, start_buffers=torch.ones(2)), "begin at other values"),
        (replace(one, buffers=("own",)), "are shared in another way"),
        (replace(one, log_options={"mae": {"on_epoch": True}}), "logs 'mae' with other options at one of node node-7"),
    ):
        with pytest.raises(EnrolmentError, match=why):
            merged(rosters(found, one, other), found)
    with pytest.raises(EnrolmentError, match=r"node node-9 \(clients 1, 2\) did not say which buffers"):
        merged(rosters(found, one), found)
    found.resume(torch.tensor([5, 8, 8]), {})
    assert merged(rosters(found, one), found).num_clients == 3
    with pytest.raises(EnrolmentError, match="did not say"):
        merged({}, found)


def test_nodes_are_told_of_the_run_with_the_first_question():
    questions = []

    class Heard(Nodes):
        def exchange(self, packets, group, seconds):
            questions.extend(packets.values())
            return super().exchange(packets, group, seconds)

    carrier = Heard({7: holding(0, 1, 2)})
    Directory(carrier, 3, SCAFFOLD(0.1), PARAMETERS, 2.5, pause=0.0, run="the run", clock=carrier.clock).complete()
    directory(carrier).complete()
    assert [question.values for question in questions] == [{"run": "the run"}, {}]


def test_a_node_that_refuses_the_run_says_why():
    refusal = encode_failure(Failure("RefusedClassError", "model names os.system"))
    with pytest.raises(EnrolmentError, match=r"Node node-7 cannot enrol: RefusedClassError: model names os\.system"):
        directory(Nodes({7: refusal})).complete()


@pytest.mark.parametrize(
    ("theirs", "ours", "why"),
    [
        (
            "Channel(a)",
            "Channel(b)",
            r"through Channel\(a\), the server expects Channel\(b\)\. Give both the same channel",
        ),
        ("", "Channel(b)", r"its updates pass through no channel, the server expects Channel\(b\)"),
        ("Channel(a)", "", r"through Channel\(a\), the server expects no channel"),
    ],
)
def test_a_node_with_another_channel_does_not_fit(theirs, ours, why):
    carrier = Nodes({7: holding(0, channel=theirs)})
    there = Directory(carrier, 1, SCAFFOLD(0.1), PARAMETERS, 2.5, pause=0.0, clock=carrier.clock, channel=ours)
    with pytest.raises(EnrolmentError, match=why):
        there.complete()


def test_a_node_with_the_same_channel_fits():
    carrier = Nodes({7: holding(0, channel="Channel(a)")})
    Directory(
        carrier, 1, SCAFFOLD(0.1), PARAMETERS, 2.5, pause=0.0, clock=carrier.clock, channel="Channel(a)"
    ).complete()
