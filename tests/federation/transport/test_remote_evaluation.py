"""The server's half of an evaluation at nodes: whom it asks, and which answers it takes."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from fedlightning.federation.protocol import ClientValues, EvaluationAnswer, EvaluationRequest
from fedlightning.federation.remote.carrier import Delivery
from fedlightning.federation.remote.evaluation_codec import decode_evaluate, encode_evaluation
from fedlightning.federation.remote.failure import Failure, encode_failure
from fedlightning.federation.remote.ledger import Ledger
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.silence import NodeError
from fedlightning.federation.transport.remote_evaluation import RemoteEvaluation

REQUEST = EvaluationRequest("val", torch.zeros(2))


def values(client_ids, samples=2.0):
    return ClientValues(client_ids, torch.arange(float(len(client_ids))), torch.full((len(client_ids),), samples))


class Holdings:
    """A directory of two nodes, which notes whether it was completed."""

    def __init__(self, found=True):
        self.nodes = [7, 8] if found else []
        self.completed = 0

    def look_for_nodes(self):
        pass

    def complete(self):
        self.completed += 1
        self.nodes = [7, 8]

    def by_node(self, client_ids):
        return {7: [0, 1], 8: [2]}

    def name(self, node):
        return f"node {node}"


def evaluation(answers, holdings=None):
    """Nodes 7 and 8 answer with packets; None for silence."""
    sent = {}

    def exchange(packets, group, seconds):
        sent.update(packets)
        for node, packet in answers.items():
            yield Delivery(node, packet, "" if packet else "it is away")

    carrier = SimpleNamespace(exchange=exchange)
    return RemoteEvaluation(carrier, Holdings() if holdings is None else holdings, Ledger(), 1.0, 2), sent


def encoded(**metrics):
    return encode_evaluation([EvaluationAnswer(metrics)])


GOOD = encoded(val_loss=values([2]))


def test_each_node_is_asked_for_its_own_clients():
    one, sent = evaluation({8: GOOD, 7: encoded(val_loss=values([1, 0]))})
    found = list(one.answers(REQUEST, range(3)))
    assert [each.metrics["val_loss"].client_ids for each in found] == [[2], [1, 0]]
    assert [standing.client for standing in decode_evaluate(sent[7]).standings] == [0, 1]
    assert decode_evaluate(sent[8]).request.stage == "val"


def test_nodes_enrol_before_the_first_evaluation():
    for found, times in ((True, 0), (False, 1)):
        holdings = Holdings(found)
        one, _ = evaluation({8: GOOD, 7: encoded(val_loss=values([1, 0]))}, holdings)
        list(one.answers(REQUEST, range(3)))
        list(one.answers(REQUEST, range(3)))
        assert holdings.completed == times


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (encoded(val_loss=values([2])), "it is of clients of other nodes"),
        (encoded(step=values([0])), "a metric of the name 'step', which is the server's"),
        (encoded(val_loss=values([0, 0])), "two values of 'val_loss' for one client"),
        (encoded(val_loss=values([0], torch.inf)), r"'val_loss' over \[inf\] samples"),
        (encoded(val_loss=values([0], 0.0)), r"'val_loss' over \[0.0\] samples"),
        (encoded(val_loss=replace(values([0]), values=torch.tensor([-1e30]))), "'val_loss' has numbers up to 1e"),
        (encoded(val_loss=values([0], 1e30)), "'its samples' has numbers up to 1e"),
        (encoded(val_acc=replace(values([0]), sums={"tp": torch.tensor([[2.0, 1e13]])})), "'tp' has numbers up to 1e"),
        (
            encode_evaluation(
                [EvaluationAnswer({"val_loss": values([0])}), EvaluationAnswer({"val_loss": values([0])})]
            ),
            "two values of 'val_loss'",
        ),
        (Packet("answers", {"kinds": []}), "kind 'evaluation'"),
    ],
)
def test_a_wrong_answer_is_left_out_and_said(wrong, why):
    one, _ = evaluation({7: wrong, 8: GOOD})
    with pytest.warns(RuntimeWarning) as said:
        (answer,) = one.answers(REQUEST, range(3))
    assert re.search(f"Validation: an answer of node 7 was left out: .*{why}", str(said[0].message))
    assert answer.metrics["val_loss"].client_ids == [2]
    assert "without 2 of 3 clients, of whose nodes there is no answer: 0, 1" in str(said[-1].message)


def summed(client_ids, metric="accuracy", **sums):
    return encoded(val_accuracy=replace(values(client_ids), metric=metric, sums=sums))


@pytest.mark.parametrize(
    "odd",
    [
        summed([2], right=torch.ones(1, 4)),
        summed([2], wrong=torch.ones(1, 3)),
        summed([2], right=torch.ones(1, 3, dtype=torch.long)),
        summed([2], "other", right=torch.ones(1, 3)),
        summed([2], ""),
    ],
)
@pytest.mark.parametrize("odd_comes_first", [True, False])
def test_sums_unlike_those_of_most_clients_are_left_out(odd, odd_comes_first):
    answers = {8: odd, 7: summed([0, 1], right=torch.ones(2, 3))}
    one, _ = evaluation(answers if odd_comes_first else dict(reversed(answers.items())))
    with pytest.warns(RuntimeWarning) as said:
        (answer,) = one.answers(REQUEST, range(3))
    assert "an answer of node 8 was left out: its 'val_accuracy' is not made of what" in str(said[0].message)
    assert "without 1 of 3 clients" in str(said[1].message)
    assert answer.metrics["val_accuracy"].client_ids == [0, 1]
    assert answer.metrics["val_accuracy"].sums["right"].shape == (2, 3)


def test_missing_clients_are_named_whenever_they_are_others():
    one, _ = evaluation({7: None, 8: GOOD})
    with pytest.warns(RuntimeWarning) as said:
        assert [len(list(one.answers(REQUEST, range(3)))) for _ in range(2)] == [1, 1]
    assert [str(each.message).startswith("Validation: the metrics are without") for each in said] == [False, True]


def test_the_run_stops_where_all_nodes_fail_or_one_keeps_failing():
    fault = encode_failure(Failure("ValueError", "no such metric"))
    one, _ = evaluation({7: fault, 8: fault})
    with pytest.warns(RuntimeWarning), pytest.raises(NodeError, match=r"no node could measure; at node 7.*such metric"):
        list(one.answers(REQUEST, range(3)))
    one, _ = evaluation({7: fault, 8: GOOD})
    with pytest.warns(RuntimeWarning):
        list(one.answers(REQUEST, range(3)))
    with pytest.raises(NodeError, match="node 7 has failed 2 times in a row"):
        list(one.answers(REQUEST, range(3)))
