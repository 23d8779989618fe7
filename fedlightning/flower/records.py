"""Packets as Flower's records: arrays by name, plain values by name."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedlightning.federation.remote.packet import FORMAT, Packet, PacketError, RawArray, require_format

_ARRAYS, _VALUES, _FORMAT, _KIND = "arrays", "values", "#format", "#kind"
_RAW = "fedlightning.raw"
"""How arrays are serialised: their bytes as they are, which NumPy's format could not do for bfloat16."""


def to_record(packet: Packet) -> RecordDict:
    """Return a packet as Flower carries it."""
    arrays = {name: Array(each.dtype, each.shape, _RAW, each.data) for name, each in packet.arrays.items()}
    values = {_FORMAT: FORMAT, _KIND: packet.kind, **packet.values}
    return RecordDict({_ARRAYS: ArrayRecord(arrays), _VALUES: ConfigRecord(values)})


def to_packet(record: RecordDict) -> Packet:
    """Return the packet in what Flower brought.

    Raises:
        PacketError: If there is none, or a damaged one.
    """
    try:
        arrays, values = record.array_records[_ARRAYS], dict(record.config_records[_VALUES])
        require_format(values.pop(_FORMAT))
        kind = values.pop(_KIND)
    except KeyError as error:
        raise PacketError(f"A message of Flower's lacks {error}; it is not of this package.") from error
    if other := sorted({array.stype for array in arrays.values()} - {_RAW}):
        raise PacketError(f"An array is serialised as {other[0]!r}; expected {_RAW!r}.")
    found = {name: RawArray(each.dtype, tuple(each.shape), each.data) for name, each in arrays.items()}
    return Packet(str(kind), values, found)
