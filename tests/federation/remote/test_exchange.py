"""Answers of nodes, and what is said of nodes without one."""

from __future__ import annotations

import pytest

from fedlightning.algorithms import FedAvg
from fedlightning.federation.remote.carrier import Delivery
from fedlightning.federation.remote.enrolment import Directory
from fedlightning.federation.remote.exchange import Exchange
from fedlightning.federation.remote.failure import FAILURE, Failure, encode_failure
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.silence import NodeError, Silence


class Deliveries:
    def __init__(self, *deliveries):
        self.deliveries = deliveries

    def nodes(self):
        return {}

    def exchange(self, packets, group, seconds):
        yield from self.deliveries


def exchange(*deliveries, tolerance=3):
    carrier = Deliveries(*deliveries)
    return Exchange(carrier, Directory(carrier, 1, FedAvg(0.1), (), 1.0), Silence(tolerance))


QUESTION = dict.fromkeys((1, 2, 3, 4, 5), Packet("ask"))
FAULT = Delivery(2, encode_failure(Failure("ValueError", "bad data")))


def test_answers_come_back_and_whoever_gave_none_is_named():
    one = exchange(Delivery(3, Packet("answer")), FAULT, Delivery(1, None, "it is dead"), Delivery(4, Packet(FAILURE)))
    with pytest.warns(RuntimeWarning) as said:
        found = list(one.answers(QUESTION, "1.0", "Round 2", 7.5))
    assert found == [(3, Packet("answer"))]
    texts = [str(each.message) for each in said]
    assert [text.partition(":")[0] for text in texts] == ["Round 2"] * 4
    assert "did not answer: ValueError: bad data." in texts[0]
    assert "did not answer: it is dead." in texts[1]
    assert "nothing came within 7.5 seconds" in texts[3]
    assert one.faults.keys() == {2, 4}
    assert one.faults[2] == "ValueError: bad data"


def test_faults_are_those_of_the_last_exchange_and_stop_a_run_that_has_too_many():
    one = exchange(FAULT, tolerance=2)
    with pytest.warns(RuntimeWarning, match="bad data"):
        list(one.answers({2: Packet("ask")}, "1.0", "Round 2", 1.0))
    with pytest.raises(NodeError, match="has failed 2 times in a row"):
        list(one.answers({2: Packet("ask")}, "2.0", "Round 3", 1.0))
    one = exchange(Delivery(2, Packet("answer")))
    assert len(list(one.answers({2: Packet("ask")}, "1.0", "Round 2", 1.0))) == 1
    assert one.faults == {}
