"""Requests and answers of evaluation as packets: metrics alone travel back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from fedlightning.federation.protocol import ClientValues, EvaluationAnswer, EvaluationRequest
from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.packet import Packet, PacketError, nested, parts_of
from fedlightning.federation.remote.standing import (
    Asked,
    precision_values,
    read_asked,
    read_moment,
    read_precision,
    standing_writer,
)

EVALUATE, EVALUATION = "evaluate", "evaluation"


def encode_evaluate(asked: Asked[EvaluationRequest]) -> Packet:
    """Return an evaluation request to some clients of one node."""
    writer = standing_writer(asked)
    writer.values["stage"] = asked.request.stage
    writer.tensor("point", asked.request.point)
    writer.tensor("buffers", asked.request.buffers)
    writer.values |= {**precision_values(asked.request.precision), "moment": list(astuple(asked.request.moment))}
    return writer.packet(EVALUATE)


def decode_evaluate(packet: Packet) -> Asked[EvaluationRequest]:
    """Return an evaluation request as a node receives it.

    Raises:
        PacketError: If something is missing.
    """
    reader = Reader(packet, EVALUATE)
    point, buffers = reader.optional_tensor("point"), reader.optional_tensor("buffers")
    request = EvaluationRequest(reader.value("stage", str), point, buffers, read_precision(reader), read_moment(reader))
    return read_asked(reader, request)


def encode_evaluation(answers: Sequence[EvaluationAnswer]) -> Packet:
    """Return what clients measured: metrics by client, but neither predictions nor parameters."""
    return nested(
        EVALUATION, [_encode_values(name, each) for answer in answers for name, each in answer.metrics.items()]
    )


def decode_evaluation(packet: Packet) -> list[EvaluationAnswer]:
    """Return what clients asked.

    Raises:
        PacketError: If something is missing.
    """
    return [EvaluationAnswer(dict([_decode_values(part)])) for part in parts_of(packet, EVALUATION)]


def _encode_values(name: str, found: ClientValues) -> Packet:
    writer = Writer(name=name, client_ids=list(found.client_ids), nan_is_undefined=found.nan_is_undefined)
    writer.values |= {"prog_bar": found.prog_bar, "metric": found.metric, "logger": found.logger}
    if found.higher_is_better is not None:
        writer.values["higher_is_better"] = found.higher_is_better
    writer.tensor("values", found.values)
    writer.tensor("samples", found.samples)
    writer.tensors("sums", found.sums)
    return writer.packet("values")


def _decode_values(packet: Packet) -> tuple[str, ClientValues]:
    reader = Reader(packet, "values")
    better = reader.value("higher_is_better", bool) if reader.has("higher_is_better") else None
    found = ClientValues(
        reader.integers("client_ids"),
        reader.tensor("values"),
        reader.tensor("samples"),
        better,
        reader.value("nan_is_undefined", bool),
        reader.value("prog_bar", bool),
        reader.value("metric", str),
        reader.tensors("sums"),
        reader.value("logger", bool),
    )
    reader.finish()
    clients = (len(found.client_ids),)
    if {found.values.shape, found.samples.shape, *(each.shape[:1] for each in found.sums.values())} != {clients}:
        raise PacketError(f"The metric {reader.value('name', str)!r} has not one value a client.")
    return reader.value("name", str), found
