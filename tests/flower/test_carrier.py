"""Pushing, pulling, deadlines, and what becomes of messages that nobody answers."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from fedlightning.federation.remote.packet import Packet
from fedlightning.flower.carrier import FlowerCarrier
from tests.support.local_grid import LocalGrid, app_of


class Clock:
    """Time that goes on only while somebody sleeps."""

    def __init__(self):
        self.now, self.naps = 0.0, []

    def sleep(self, seconds):
        self.naps.append(seconds)
        self.now += seconds

    def time(self):
        return self.now


def echo(data):
    packet = Packet.from_bytes(data)
    return Packet("answers", {"heard": packet.kind}).to_bytes()


def carrier_to(*nodes, handle=echo):
    grid, clock = LocalGrid({node: app_of(handle) for node in nodes}), Clock()
    return grid, clock, FlowerCarrier(grid, poll=0.25, clock=clock.time, sleep=clock.sleep)


def test_answers_come_from_the_nodes_that_were_asked():
    grid, clock, carrier = carrier_to(7, 8, 9)
    assert carrier.nodes() == {7: "node-7", 8: "node-8", 9: "node-9"}
    found = list(carrier.exchange({7: Packet("ask"), 9: Packet("join")}, "3.1", 60.0))
    assert [(each.node, each.packet.values["heard"]) for each in found] == [(7, "ask"), (9, "join")]
    assert [each.metadata.message_type for each in grid.sent] == ["train", "query"]
    assert {(each.metadata.group_id, each.metadata.ttl) for each in grid.sent} == {("3.1", 60.0)}
    assert clock.naps == []


def test_the_deadline_ends_an_exchange_and_what_comes_later_is_not_looked_for():
    grid, clock, carrier = carrier_to(7, 8)
    grid.dead.add(8)
    found = list(carrier.exchange({7: Packet("ask"), 8: Packet("ask")}, "0.0", 0.6))
    assert [each.node for each in found] == [7]
    assert clock.naps == pytest.approx([0.25, 0.25, 0.1])
    grid.dead.clear()
    assert [each.packet.values["heard"] for each in carrier.exchange({8: Packet("join")}, "1.0", 0.6)] == ["join"]


def test_whoever_stops_listening_leaves_the_rest():
    grid, _, carrier = carrier_to(7, 8)
    grid.pull = grid.pull_messages
    exchange = carrier.exchange({7: Packet("ask"), 8: Packet("ask")}, "0.0", 60.0)
    assert next(exchange).node == 7
    exchange.close()


def test_a_node_that_never_finishes_its_upload_holds_up_neither_others_nor_the_deadline():
    grid, clock, carrier = carrier_to(7, 8)
    grid.stalled.add(7)
    found = list(carrier.exchange({7: Packet("ask"), 8: Packet("ask")}, "0.0", 0.6))
    assert [each.node for each in found] == [8]
    assert clock.now == pytest.approx(0.6)
    grid.stalled.clear()
    grid.goes_on.set()
    assert [each.node for each in carrier.exchange({7: Packet("join")}, "1.0", 0.6)] == [7]


@pytest.mark.parametrize(
    ("code", "why", "fault"),
    [
        (1, "its app could not be loaded", True),
        (2, "its app raised an error", True),
        (3, "its deadline passed", False),
        (5, "it cannot be reached", False),
        (8, "its process ended while it worked", False),
        (77, "Flower's error 77", False),
    ],
)
def test_errors_of_flower_s_are_told_apart(code, why, fault):
    grid, _, carrier = carrier_to(7)
    grid.errors[7] = code
    (delivery,) = carrier.exchange({7: Packet("ask")}, "0.0", 60.0)
    assert (delivery.packet, delivery.silence, delivery.is_fault) == (None, f"{why}: as told", fault)


def test_an_error_of_the_app_itself_is_named():
    def broken(data):
        raise ConnectionRefusedError("the worker is not there")

    _, _, carrier = carrier_to(7, handle=broken)
    (delivery,) = carrier.exchange({7: Packet("ask")}, "0.0", 60.0)
    assert "ConnectionRefusedError" in delivery.silence
    assert "the worker is not there" in delivery.silence
    assert delivery.is_fault


def test_messages_of_others_and_messages_that_are_not_taken_are_faults_of_theirs():
    grid, _, carrier = carrier_to(7)
    grid.apps[7] = lambda message, context: Message(
        RecordDict({"arrays": ArrayRecord(), "values": ConfigRecord({})}), reply_to=message
    )
    (delivery,) = carrier.exchange({7: Packet("ask")}, "0.0", 60.0)
    assert (delivery.is_fault, delivery.packet) == (True, None)
    grid.push_messages = lambda messages: [""]
    (delivery,) = carrier.exchange({7: Packet("ask")}, "0.0", 60.0)
    assert delivery.silence == "Flower did not take the message"


def test_looks_for_answers_have_a_pause():
    with pytest.raises(ValueError, match="poll"):
        FlowerCarrier(LocalGrid({}), poll=0.0)
