"""What a node sends in place of an answer it could not give."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fedlightning.core.errors import FedlightningError
from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.packet import Packet, PacketError
from fedlightning.federation.remote.store import StoreError

FAILURE = "failure"
_LOG = logging.getLogger(__name__)
_TEXT = 500
WITHHELD = "(its text stays at the node, since it may quote data; the node's log has it)"
"""Stands where the text of an error would, which somebody else's code has raised."""


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
    return Failure(_shown(reader.value("error", str)), _shown(reader.value("text", str)))


def _shown(text: str) -> str:
    """Return the beginning of a text without what would move the cursor of a terminal."""
    return "".join(each if each.isprintable() else " " for each in text[:_TEXT])


def _told(error: Exception) -> str:
    """Return what the server is told of an error.

    Errors that others raised, such as the objective or a data set, may quote data in their texts, which stay here.
    """
    if isinstance(error, PacketError | StoreError):
        return str(error)
    text, cause = str(error), error.__cause__
    if not isinstance(error, FedlightningError):
        return WITHHELD
    while cause is not None:
        if not isinstance(cause, FedlightningError):
            quoted = str(cause)
            text = (
                text.replace(quoted, WITHHELD) if quoted and quoted in text else f"{type(cause).__name__}: {WITHHELD}"
            )
        cause = cause.__cause__
    return text


def answered(data: bytes, answer: Callable[[Packet], Packet]) -> bytes:
    """Answer one message as bytes; an error becomes a message, too, without texts that may quote data.

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
        return encode_failure(Failure(type(error).__name__, _told(error)[:_TEXT])).to_bytes()
