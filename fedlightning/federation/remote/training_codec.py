"""Requests and answers of training as packets, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, fields, replace
from typing import Any

from torch import Tensor

from fedlightning.federation.protocol import Answer, Request, Stamp
from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.message_types import MessageTypes
from fedlightning.federation.remote.packet import Packet, nested, parts_of
from fedlightning.federation.remote.standing import (
    Asked,
    precision_values,
    read_asked,
    read_moment,
    read_precision,
    standing_writer,
)
from fedlightning.federation.remote.terms_codec import read_terms, write_terms

ASK, ANSWER, ANSWERS = "ask", "answer", "answers"


def encode_asked(asked: Asked[Request]) -> Packet:
    """Return a request to some clients of one node; what belongs to other clients stays here."""
    clients = [each.client for each in asked.standings]
    request = asked.request.to(*clients)
    writer = standing_writer(asked)
    writer.values |= {"round": request.stamp.round, "phase": request.stamp.phase, "seed": request.seed}
    writer.values |= {**precision_values(request.precision), "buffer_names": list(request.buffer_names)}
    writer.values["moment"] = list(astuple(request.moment))
    writer.message("message", request.message)
    writer.tensor("point", request.point)
    writer.tensor("buffers", request.buffers)
    if request.terms is not None:
        write_terms(writer, request.terms)
    return writer.packet(ASK)


def decode_asked(packet: Packet, types: MessageTypes) -> Asked[Request]:
    """Return a request as a node receives it.

    Raises:
        PacketError: If something is missing, or is not what the algorithm uses.
    """
    reader = Reader(packet, ASK)
    request = Request(
        _stamp(reader),
        reader.value("seed", int),
        reader.message("message", types),
        reader.tensor("point"),
        reader.tensor("buffers"),
        tuple(reader.strings("buffer_names")),
        read_precision(reader),
        read_moment(reader),
        read_terms(reader),
    )
    return read_asked(reader, request)


def encode_answer(answer: Answer) -> Packet:
    """Return the answer of one client or several."""
    writer = Writer(round=answer.stamp.round, phase=answer.stamp.phase, client_ids=list(answer.client_ids))
    writer.values["per_client"] = list(answer.per_client)
    writer.message("update", answer.update)
    writer.tensor("buffers", answer.buffers)
    writer.tensors("metrics", answer.metrics)
    writer.tensors("tally", answer.tally)
    writer.tensor("evaluated", answer.evaluated)
    writer.tensor("sound", answer.sound)
    if answer.bits is not None:
        writer.tensor("bits", answer.bits)
        writer.tensors("reports", answer.reports)
    return writer.packet(ANSWER)


def decode_answer(packet: Packet, types: MessageTypes) -> Answer:
    """Return the answer of one client or several.

    Raises:
        PacketError: If something is missing, or is not what the algorithm uses.
    """
    reader = Reader(packet, ANSWER)
    answer = Answer(
        _stamp(reader),
        reader.integers("client_ids"),
        reader.message("update", types),
        reader.tensor("buffers"),
        reader.tensors("metrics"),
        reader.tensors("tally"),
        reader.optional_tensor("evaluated"),
        tuple(reader.strings("per_client")),
        reader.optional_tensor("sound"),
        bits := reader.optional_tensor("bits"),
        {} if bits is None else reader.tensors("reports"),
    )
    reader.finish()
    return answer


def encode_answers(answers: Sequence[Packet]) -> Packet:
    """Return the packets of a node's answers as one."""
    return nested(ANSWERS, answers)


def decode_answers(packet: Packet) -> list[Packet]:
    """Return the packets of a node's answers, each to be decoded by itself, so that a wrong one spoils no other.

    Raises:
        PacketError: If there are none.
    """
    return parts_of(packet, ANSWERS)


def split(answer: Answer) -> list[Answer]:
    """Return an answer of S clients as S answers of one client each."""
    return [_of_one(answer, place) for place in range(len(answer.client_ids))]


def _stamp(reader: Reader) -> Stamp:
    return Stamp(reader.value("round", int), reader.value("phase", int))


def _of_one(answer: Answer, place: int) -> Answer:
    here = slice(place, place + 1)
    update: Any = answer.update
    if update is not None:
        own = {each.name: getattr(update, each.name) for each in fields(update)}
        update = replace(update, **{k: v[here] if isinstance(v, Tensor) else v for k, v in own.items()})
    return replace(
        answer,
        client_ids=answer.client_ids[here],
        update=update,
        buffers=answer.buffers[here],
        metrics={name: values[here] for name, values in answer.metrics.items()},
        tally={name: values[here] for name, values in answer.tally.items()},
        evaluated=None if answer.evaluated is None else answer.evaluated[here],
        sound=None if answer.sound is None else answer.sound[here],
        bits=None if answer.bits is None else answer.bits[here],
        reports={name: values[here] for name, values in answer.reports.items()},
    )
