"""What clients are told of a channel, as parts of a packet."""

from __future__ import annotations

from fedlightning.federation.channels.reception import Reception
from fedlightning.federation.protocol import Request
from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.packet import PacketError
from fedlightning.federation.terms import Terms


def write_terms(writer: Writer, terms: Terms) -> None:
    """Add terms to a packet."""
    writer.values |= {"cohort": terms.cohort, "num_clients": terms.num_clients}
    if terms.expected is not None:
        writer.values["expected"] = float(terms.expected)
    writer.tensors("public", terms.public)


def read_terms(reader: Reader) -> Terms | None:
    """Return the terms in a packet; None if there are none.

    Raises:
        PacketError: If a number is missing, or there are fewer clients than one.
    """
    if not reader.has("cohort"):
        return None
    expected = reader.value("expected", float) if reader.has("expected") else None
    terms = Terms(reader.value("cohort", int), reader.value("num_clients", int), reader.tensors("public"), expected)
    if min(terms.cohort, terms.num_clients) < 1 or (expected is not None and not expected > 0):
        raise PacketError(
            f"A request says that {terms.cohort} of {terms.num_clients} clients are asked, {expected} on average; "
            "expected numbers above 0."
        )
    return terms


def require_terms(request: Request, reception: Reception | None) -> None:
    """Make sure that a request has terms where the node's updates pass through a channel, and only there.

    Raises:
        PacketError: If it has not, so that a node's own channel could not be applied.
    """
    channel = None if reception is None else reception.channels.of(request.stamp.phase)
    if (channel is None) != (request.terms is None):
        has, expects = ("no ", "some") if request.terms is None else ("", "none")
        raise PacketError(
            f"A request has {has}terms of a channel, and this node expects {expects}. Give server and node the same "
            "channel."
        )
