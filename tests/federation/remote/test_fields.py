"""Parts of packets, written and read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedlightning.algorithms import FedAvg
from fedlightning.algorithms.base import PerClient
from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.message_types import MessageTypes
from fedlightning.federation.remote.packet import Packet, PacketError


@dataclass(frozen=True)
class Message:
    z: Any
    t: Any


class Nearby(FedAvg):
    """Its messages are defined here."""


TYPES = MessageTypes(Nearby(0.1))


def there_and_back(message):
    writer = Writer()
    writer.message("message", message)
    return Reader(writer.packet("ask"), "ask").message("message", TYPES)


@pytest.mark.parametrize("t", [3, 0.1 + 0.2, True, None, torch.tensor(2.5, dtype=torch.bfloat16)])
def test_tensors_numbers_and_none_come_back(t):
    back = there_and_back(Message(torch.arange(3.0), t))
    assert torch.equal(back.z, torch.arange(3.0))
    assert type(back.t) is type(t)
    assert back.t == t
    assert there_and_back(None) is None


def test_values_of_each_client_come_back():
    z = PerClient(torch.zeros(2), torch.tensor([4]), torch.ones(1, 2))
    back = there_and_back(Message(z, 1)).z
    assert isinstance(back, PerClient)
    assert back.of([4, 0]).tolist() == [[1, 1], [0, 0]]


def test_what_was_added_under_another_name_is_not_sent_twice():
    w = torch.arange(4.0)
    writer = Writer()
    writer.message("message", Message(w, PerClient(w, torch.tensor([4]), torch.ones(1, 4))))
    for name, tensor in (("point", w), ("again", w.clone()), ("part", w[:2]), ("none", w[:0]), ("empty", w[:0])):
        writer.tensor(name, tensor)
    packet = writer.packet("ask")
    assert set(packet.arrays) == {
        "message.z",
        "message.t.client_ids",
        "message.t.values",
        "again",
        "part",
        "none",
        "empty",
    }
    reader = Reader(Packet.from_bytes(packet.to_bytes()), "ask")
    message = reader.message("message", TYPES)
    assert reader.tensor("point") is message.z is message.t.default
    assert torch.equal(reader.optional_tensor("point"), w)
    assert [reader.tensor(name).tolist() for name in ("again", "part", "none")] == [
        [0.0, 1.0, 2.0, 3.0],
        [0.0, 1.0],
        [],
    ]
    with pytest.raises(PacketError, match="has the array 'empty'"):
        reader.finish()
    assert reader.tensor("empty").shape == (0,)
    reader.finish()


@pytest.mark.parametrize("name", ["elsewhere", "point", 3])
def test_a_name_of_no_array_is_refused(name):
    packet = Packet("ask", {"point.same": name}, {})
    with pytest.raises(PacketError, match="lacks the array 'point'"):
        Reader(packet, "ask").optional_tensor("point")


def test_other_things_do_not_travel():
    with pytest.raises(PacketError, match=r"Message\.t is a list, which cannot travel"):
        there_and_back(Message(torch.zeros(1), [1]))


def test_what_is_missing_or_of_another_type_is_named():
    reader = Reader(Writer(round=1, names=["a"], scale=2).packet("ask"), "ask")
    assert (reader.value("round", int), reader.value("scale", float), reader.strings("names")) == (1, 2.0, ["a"])
    assert not reader.has("phase")
    for call, why in (
        (lambda: reader.value("phase", int), "has phase = nothing; expected a int"),
        (lambda: reader.value("names", str), "expected a str"),
        (lambda: reader.integers("names"), "expected a list of int"),
        (lambda: reader.tensor("z"), "lacks the array 'z'"),
        (lambda: Reader(Writer().packet("join"), "ask"), "the kind 'ask'; got 'join'"),
    ):
        with pytest.raises(PacketError, match=why):
            call()


def test_an_array_that_nobody_reads_is_refused():
    writer = Writer()
    writer.tensor("z", torch.zeros(2))
    reader = Reader(writer.packet("ask"), "ask")
    with pytest.raises(PacketError, match="has the array 'z', which does not belong into it"):
        reader.finish()
    reader.tensor("z")
    reader.finish()
