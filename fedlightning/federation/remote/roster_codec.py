"""What nodes say of their clients before the first round, as packets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from fedlightning.federation.protocol import Parameter, Precision, Roster
from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.packet import Packet, PacketError
from fedlightning.federation.remote.standing import precision_values, read_precision
from fedlightning.federation.remote.tensors import dtype_name, named_dtype

ENROL, ENROLMENT, JOIN, ROSTER = "enrol", "enrolment", "join", "roster"
RUN = "run"
"""Name under which the question who a node is brings the description of the run."""


@dataclass(frozen=True)
class Enrolment:
    """Says which clients a node holds, and what it would train them with.

    Attributes:
        client_ids: Ids of its clients.
        samples: Their numbers of samples, ``[S]``.
        data: By what each client's data are recognised if it comes back.
        parameters: The shared parameters of the node's task.
        algorithm: The class of the node's algorithm.
        version: The node's version of fedlightning.
        precision: Precision of the objective that the node has chosen itself; None where it is the run's.
        channel: Description of the channel that its updates pass through; empty for none.
    """

    client_ids: list[int]
    samples: Tensor
    data: list[str]
    parameters: tuple[Parameter, ...]
    algorithm: str
    version: str
    precision: Precision | None = None
    channel: str = ""


def encode_enrolment(enrolment: Enrolment) -> Packet:
    """Return which clients a node holds."""
    writer = Writer(client_ids=list(enrolment.client_ids), algorithm=enrolment.algorithm, version=enrolment.version)
    _write_parameters(writer, enrolment.parameters)
    writer.tensor("samples", enrolment.samples)
    writer.values["data"] = list(enrolment.data)
    writer.values |= {} if enrolment.precision is None else precision_values(enrolment.precision)
    if enrolment.channel:
        writer.values["channel"] = enrolment.channel
    return writer.packet(ENROLMENT)


def decode_enrolment(packet: Packet) -> Enrolment:
    """Return which clients a node holds.

    Raises:
        PacketError: If something is missing.
    """
    reader = Reader(packet, ENROLMENT)
    return Enrolment(
        reader.integers("client_ids"),
        reader.tensor("samples"),
        reader.strings("data"),
        _read_parameters(reader),
        reader.value("algorithm", str),
        reader.value("version", str),
        read_precision(reader) if reader.has("dtype") else None,
        reader.value("channel", str) if reader.has("channel") else "",
    )


def encode_join(precision: Precision) -> Packet:
    """Return the question which buffers the objective changes."""
    return Writer(**precision_values(precision)).packet(JOIN)


def decode_join(packet: Packet) -> Precision:
    """Return the precision in which clients find out which buffers the objective changes."""
    return read_precision(Reader(packet, JOIN))


def encode_roster(roster: Roster) -> Packet:
    """Return what a node says of its clients."""
    writer = Writer(buffers=list(roster.buffers), changed_buffers=list(roster.changed_buffers))
    if roster.start_loss is not None:
        writer.values["start_loss"] = float(roster.start_loss)
    writer.values["log_options"] = json.dumps({name: dict(given) for name, given in roster.log_options.items()})
    _write_parameters(writer, roster.parameters)
    writer.tensor("samples", roster.samples)
    writer.tensor("start_buffers", roster.start_buffers)
    return writer.packet(ROSTER)


def decode_roster(packet: Packet) -> Roster:
    """Return what a node says of its clients.

    Raises:
        PacketError: If something is missing.
    """
    reader = Reader(packet, ROSTER)
    return Roster(
        reader.tensor("samples"),
        tuple(reader.strings("buffers")),
        reader.tensor("start_buffers"),
        reader.value("start_loss", float) if reader.has("start_loss") else None,
        _read_parameters(reader),
        tuple(reader.strings("changed_buffers")),
        _read_log_options(reader.value("log_options", str)),
    )


def _read_log_options(text: str) -> dict[str, dict[str, bool]]:
    try:
        found = json.loads(text)
        options = {str(name): dict(given) for name, given in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise PacketError("How a node reports logged values cannot be read.") from error
    if any(type(flag) is not bool for given in options.values() for flag in given.values()):
        raise PacketError(f"A node reports logged values as {text[:80]}; expected options that are true or false.")
    return options


def _write_parameters(writer: Writer, parameters: Sequence[Parameter]) -> None:
    writer.values["parameters"] = [each.name for each in parameters]
    writer.values["shapes"] = [json.dumps(list(each.shape)) for each in parameters]
    writer.values["dtypes"] = [dtype_name(each.dtype) for each in parameters]


def _read_parameters(reader: Reader) -> tuple[Parameter, ...]:
    names, shapes, dtypes = (reader.strings(name) for name in ("parameters", "shapes", "dtypes"))
    if not len(names) == len(shapes) == len(dtypes):
        raise PacketError("A message does not say shape and dtype of each parameter.")
    try:
        sizes = [tuple(int(size) for size in json.loads(shape)) for shape in shapes]
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise PacketError("The shape of a parameter cannot be read.") from error
    return tuple(
        Parameter(name, size, named_dtype(dtype)) for name, size, dtype in zip(names, sizes, dtypes, strict=True)
    )
