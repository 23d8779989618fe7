"""What a node sends in place of an answer it could not give."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.packet import Packet

FAILURE = "failure"
_LOG = logging.getLogger(__name__)
_TEXT = 500


@dataclass(frozen=True)
class Failure:
    """Says that a node could not answer, because it refused a request or because an error arose.

    Attributes:
        error: Class of the error.
        text: Its message.
    """

    error: str
    text: str


def encode_failure(failure: Failure) -> Packet:
    """Return why a node could not answer."""
    return Writer(error=failure.error, text=failure.text).packet(FAILURE)


def decode_failure(packet: Packet) -> Failure:
    """Return why a node could not answer."""
    reader = Reader(packet, FAILURE)
    return Failure(reader.value("error", str), reader.value("text", str))


def answered(data: bytes, answer: Callable[[Packet], Packet]) -> bytes:
    """Answer one message as bytes; an error becomes a message, too.

    Args:
        data: A packet as bytes.
        answer: Answers packets.

    Returns:
        The answer as bytes.
    """
    try:
        return answer(Packet.from_bytes(data)).to_bytes()
    except Exception as error:
        _LOG.exception("A request was not answered")
        return encode_failure(Failure(type(error).__name__, str(error)[:_TEXT])).to_bytes()
