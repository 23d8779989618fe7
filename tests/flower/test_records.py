"""Packets through Flower's own serialisation, bit for bit."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedlightning.federation.remote.packet import ITEM_SIZES, Packet, PacketError, RawArray
from fedlightning.federation.remote.tensors import from_raw, named_dtype, to_raw
from fedlightning.flower.records import to_packet, to_record
from tests.support.local_grid import through_flower

VALUES = {"seed": 2**63 - 1, "scale": 0.1 + 0.2, "names": ["a", ""], "ids": [3, 0], "none": [], "is": False, "text": ""}


def test_values_come_back():
    packet = Packet("ask", VALUES)
    back = to_packet(through_flower(to_record(packet)))
    assert back == packet
    assert [type(value) for value in back.values.values()] == [type(value) for value in VALUES.values()]


@pytest.mark.parametrize("name", ITEM_SIZES)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_every_bit_of_an_array_comes_back(name, shape):
    count = torch.Size(shape).numel() * ITEM_SIZES[name]
    raw = torch.randint(0, 2 if name == "bool" else 256, (count,), dtype=torch.uint8)
    tensor = raw.view(named_dtype(name)).reshape(shape) if count else torch.empty(shape, dtype=named_dtype(name))
    packet = Packet("answer", {}, {"update.z": to_raw(tensor)})
    back = to_packet(through_flower(to_record(packet))).arrays["update.z"]
    assert back == packet.arrays["update.z"]
    assert from_raw(back).dtype == tensor.dtype


def test_arrays_larger_than_a_chunk_of_flower_s_come_back():
    array = RawArray("uint8", (6_000_001,), bytes(range(256)) * 23437 + bytes(129))
    record = to_record(Packet("answer", {}, {"w": array}))
    inflated = Array.inflate(
        record.array_records["arrays"]["w"].deflate(), record.array_records["arrays"]["w"].children
    )
    assert inflated.data == array.data


def test_messages_of_others_are_refused():
    good = to_record(Packet("ask"))
    other = {"#format": 99, "#kind": "ask"}
    numpy = ArrayRecord({"w": Array(torch.zeros(2).numpy())})
    for record, why in (
        (RecordDict(), "lacks 'arrays'"),
        (RecordDict({"arrays": ArrayRecord(), "values": ConfigRecord({})}), "lacks '#format'"),
        (RecordDict({"arrays": ArrayRecord(), "values": ConfigRecord(other)}), "format 99"),
        (RecordDict({"arrays": numpy, "values": good.config_records["values"]}), "serialised as 'numpy.ndarray'"),
    ):
        with pytest.raises(PacketError, match=why):
            to_packet(record)
