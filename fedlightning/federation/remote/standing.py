"""Parts that several messages have: from which state clients answer, and in which precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Generic, TypeVar

from fedlightning.federation.protocol import Moment, Precision
from fedlightning.federation.remote.fields import Reader, Writer
from fedlightning.federation.remote.generation import Generation, Standing, require_distinct, text_of
from fedlightning.federation.remote.packet import PacketError, Value
from fedlightning.federation.remote.tensors import dtype_name, named_dtype

RequestT = TypeVar("RequestT")


@dataclass(frozen=True)
class Asked(Generic[RequestT]):
    """Carries a request to a node.

    Attributes:
        federation: Id of the federation, under which nodes keep the states of their clients.
        request: What the clients are asked, to train or to measure.
        standings: From which state each of the asked clients answers.
    """

    federation: str
    request: RequestT
    standings: tuple[Standing, ...]


def standing_writer(federation: str, standings: Sequence[Standing]) -> Writer:
    """Begin a packet that says from which state each client of a federation answers."""
    kept = [(each.client, generation) for each in standings for generation in each.kept]
    return Writer(
        federation=federation,
        client_ids=[each.client for each in standings],
        bases=[text_of(each.base) for each in standings],
        kept_clients=[client for client, _ in kept],
        kept=[str(generation) for _, generation in kept],
    )


def read_standings(reader: Reader) -> tuple[Standing, ...]:
    """Return from which state each client answers.

    Raises:
        PacketError: If a client is named twice, or something is missing.
    """
    clients, bases = reader.integers("client_ids"), reader.strings("bases")
    kept_clients, kept = reader.integers("kept_clients"), reader.strings("kept")
    require_distinct(clients)
    if len(clients) != len(bases) or len(kept_clients) != len(kept):
        raise PacketError("A request does not say of each client from which state it answers.")
    generations = [(client, Generation.of(text)) for client, text in zip(kept_clients, kept, strict=True)]
    return tuple(
        Standing(
            client,
            Generation.of(base),
            tuple(generation for owner, generation in generations if owner == client and generation is not None),
        )
        for client, base in zip(clients, bases, strict=True)
    )


def read_moment(reader: Reader) -> Moment:
    """Return when clients compute.

    Raises:
        PacketError: If it is not three numbers.
    """
    numbers = reader.integers("moment")
    if len(numbers) != len(fields(Moment)):
        raise PacketError(f"A request takes place at {numbers}; expected epoch, number in the epoch, and round.")
    return Moment(*numbers)


def precision_values(precision: Precision) -> dict[str, Value]:
    """Return a precision as plain values."""
    return {"dtype": "" if precision.dtype is None else dtype_name(precision.dtype), "scale": float(precision.scale)}


def read_precision(reader: Reader) -> Precision:
    """Return a precision that :func:`precision_values` wrote."""
    name = reader.value("dtype", str)
    return Precision(named_dtype(name) if name else None, reader.value("scale", float))
