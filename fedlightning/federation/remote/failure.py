"""What a node sends in place of an answer it could not give."""

from __future__ import annotations

from dataclasses import dataclass

from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.packet import Packet

FAILURE = "failure"


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
