"""Messages between machines as named arrays and plain values, and as bytes.

Nothing here needs torch, so that a process which only passes messages on starts fast. Nothing here can run code:
a packet holds numbers, strings and raw arrays, and whoever reads it decides what they mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from operator import index
from typing import Any

from fedlightning.core.errors import FedlightningError

FORMAT = 1
"""Version of the messages; machines that send another one are refused by name."""

ITEM_SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
"""Bytes of a number, by the name of each dtype that may travel."""

Value = bool | int | float | str | list[int] | list[float] | list[str]
"""A plain value of a packet."""


class PacketError(FedlightningError, ValueError):
    """A message from another machine cannot be read, or says something that does not fit this federation."""


@dataclass(frozen=True)
class RawArray:
    """Holds an array as bytes, row by row and in little-endian order.

    Attributes:
        dtype: Name of the dtype, one of :data:`ITEM_SIZES`.
        shape: Its shape.
        data: Its bytes.

    Raises:
        PacketError: If the dtype is unknown, or the number of bytes does not belong to dtype and shape.
    """

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_SIZES:
            raise PacketError(f"An array has the dtype {self.dtype!r}; expected one of {', '.join(ITEM_SIZES)}.")
        if any(type(size) is not int or size < 0 for size in self.shape):
            raise PacketError(f"An array has the shape {list(self.shape)}; expected whole numbers from 0 on.")
        expected = prod(self.shape) * ITEM_SIZES[self.dtype]
        if len(self.data) != expected:
            raise PacketError(
                f"An array of {self.dtype} {list(self.shape)} came with {len(self.data)} bytes; expected {expected}."
            )


@dataclass(frozen=True)
class Packet:
    """Holds one message between machines.

    Attributes:
        kind: What the message is, such as ``ask`` or ``answers``.
        values: Plain values by name.
        arrays: Arrays by name.
    """

    kind: str
    values: Mapping[str, Value] = field(default_factory=dict)
    arrays: Mapping[str, RawArray] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Return the number of bytes of all arrays."""
        return sum(len(array.data) for array in self.arrays.values())

    def to_bytes(self) -> bytes:
        """Return the packet as bytes: the length of a JSON header, the header, the arrays' bytes one after another."""
        arrays = [[name, array.dtype, list(array.shape)] for name, array in self.arrays.items()]
        header = json.dumps([FORMAT, self.kind, dict(self.values), arrays]).encode()
        return b"".join([len(header).to_bytes(8, "little"), header, *(array.data for array in self.arrays.values())])

    @classmethod
    def from_bytes(cls, data: bytes) -> Packet:
        """Return the packet that :meth:`to_bytes` turned into bytes.

        Raises:
            PacketError: If the bytes are no packet, a damaged one, or one of another version.
        """
        start = 8 + int.from_bytes(data[:8], "little")
        if len(data) < start:
            raise PacketError(f"A message of {len(data)} bytes breaks off in its header.")
        try:
            version, kind, values, arrays = json.loads(data[8:start])
            values = dict(values)
            layout = [(str(name), str(dtype), tuple(map(index, shape))) for name, dtype, shape in arrays]
        except (ValueError, TypeError, RecursionError) as error:
            raise PacketError("The header of a message cannot be read.") from error
        require_format(version)
        found: dict[str, RawArray] = {}
        for name, dtype, shape in layout:
            stop = start + prod(shape) * ITEM_SIZES.get(dtype, 0)
            found[name] = RawArray(dtype, shape, data[start:stop])
            start = stop
        if start != len(data):
            raise PacketError(f"A message has {len(data)} bytes; its header speaks of {start}.")
        return cls(str(kind), values, found)


def nested(kind: str, parts: Sequence[Packet]) -> Packet:
    """Return one packet that holds several; :func:`parts_of` takes them out again."""
    values: dict[str, Value] = {"kinds": [part.kind for part in parts]}
    arrays: dict[str, RawArray] = {}
    for place, part in enumerate(parts):
        values |= {f"{place}/{name}": value for name, value in part.values.items()}
        arrays |= {f"{place}/{name}": array for name, array in part.arrays.items()}
    return Packet(kind, values, arrays)


def parts_of(packet: Packet, kind: str) -> list[Packet]:
    """Return the packets that :func:`nested` has put into one of a kind.

    Raises:
        PacketError: If the packet is of another kind, there are none in it, or a name belongs to none of them.
    """
    require_kind(packet, kind)
    kinds = packet.values.get("kinds")
    if not isinstance(kinds, list):
        raise PacketError(f"A message of the kind {packet.kind!r} holds no others.")
    values: list[dict[str, Value]] = [{} for _ in kinds]
    arrays: list[dict[str, RawArray]] = [{} for _ in kinds]
    parts: tuple[tuple[Mapping[str, Any], list[Any]], ...] = ((packet.values, values), (packet.arrays, arrays))
    for found, into in parts:
        for name, content in found.items():
            place, divided, inner = name.partition("/")
            if not divided:
                continue
            if not is_short_number(place) or int(place) >= len(kinds):
                raise PacketError(f"A message has a part {place[:80]!r}; expected 0 to {len(kinds) - 1}.")
            into[int(place)][inner] = content
    return [Packet(str(kind), values[place], arrays[place]) for place, kind in enumerate(kinds)]


def is_short_number(text: str) -> bool:
    """Return whether a text is a whole number of at most eighteen digits, which Python reads in any case."""
    return text.isdecimal() and len(text) <= 18


def require_kind(packet: Packet, kind: str) -> None:
    """Make sure that a packet is of the kind that is expected.

    Raises:
        PacketError: If it is of another one.
    """
    if packet.kind != kind:
        raise PacketError(f"Expected a message of the kind {kind!r}; got {packet.kind!r}.")


def require_format(version: object) -> None:
    """Make sure that another machine writes messages as this one does.

    Raises:
        PacketError: If it does not.
    """
    if version != FORMAT:
        raise PacketError(
            f"A message has format {version!r}, this fedlightning reads {FORMAT}. Install the same version of "
            "fedlightning on the server and on all nodes."
        )
