"""Packets: bytes there and back, and all that must not be taken for one."""

from __future__ import annotations

import json

import pytest

from fedlightning.federation.remote.packet import FORMAT, Packet, PacketError, RawArray, nested, parts_of

PACKET = Packet(
    "ask",
    {"seed": 2**63 - 1, "scale": 0.1, "names": ["a", "ü"], "none": [], "is": True},
    {"w": RawArray("float32", (2, 1), bytes(range(8))), "empty": RawArray("int64", (0, 3), b"")},
)


def test_a_packet_comes_back_from_its_bytes():
    assert Packet.from_bytes(PACKET.to_bytes()) == PACKET
    assert PACKET.num_bytes == 8


@pytest.mark.parametrize("length", [0, 3, 8, 20, len(PACKET.to_bytes()) - 1])
def test_a_packet_that_breaks_off_is_refused(length):
    with pytest.raises(PacketError):
        Packet.from_bytes(PACKET.to_bytes()[:length])


def test_bytes_behind_the_packet_are_refused():
    with pytest.raises(PacketError, match="its header speaks of"):
        Packet.from_bytes(PACKET.to_bytes() + b"x")


def with_header(header):
    data = json.dumps(header).encode()
    return len(data).to_bytes(8, "little") + data


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ([FORMAT + 1, "ask", {}, []], f"format {FORMAT + 1}.*reads {FORMAT}.*same version"),
        ([FORMAT, "ask", {}, [["w", "object", [1]]]], "dtype 'object'; expected one of"),
        ([FORMAT, "ask", {}, [["w", "int8", [-1]]]], r"shape \[-1\]"),
        ([FORMAT, "ask", {}, [["w", "int8", [1.5]]]], r"cannot be read|shape"),
        ([FORMAT, "ask", {}, [["w", "float64", [2]]]], "came with 0 bytes; expected 16"),
        ({"no": "list"}, "cannot be read"),
        ([FORMAT, "ask", [1, 2], []], "cannot be read"),
    ],
)
def test_wrong_headers_are_named(header, why):
    with pytest.raises(PacketError, match=why):
        Packet.from_bytes(with_header(header))


def test_several_packets_travel_as_one():
    parts = [PACKET, Packet("answer"), PACKET]
    assert parts_of(Packet.from_bytes(nested("answers", parts).to_bytes()), "answers") == parts
    assert parts_of(nested("answers", []), "answers") == []


def test_a_part_that_does_not_exist_is_refused():
    with pytest.raises(PacketError, match="has a part '1'; expected 0 to 0"):
        parts_of(Packet("answers", {"kinds": ["answer"], "1/seed": 3}), "answers")
    with pytest.raises(PacketError, match="holds no others"):
        parts_of(Packet("answers", {"seed": 3}), "answers")
    with pytest.raises(PacketError, match="kind 'answers'; got 'evaluation'"):
        parts_of(nested("evaluation", []), "answers")


def test_a_part_of_too_many_digits_is_refused():
    """Python reads no number of 5,000 digits."""
    wrong = Packet("several", {"kinds": ["a"], f"{'9' * 5000}/x": 1})
    with pytest.raises(PacketError, match="A message has a part '9999"):
        parts_of(wrong, "several")
