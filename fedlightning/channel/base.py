"""What happens to an update on its way from a client to the server.

Without a channel, the server receives the mean of what algorithms send. With one, every field of an update is first
written as its difference from what the server knows already (see :func:`~fedlightning.algorithms.base.relative_to`), as
a matrix ``[S, n]`` with a row for each of S clients. Then, in this order:

1. the client's transforms, one after the other (clipping, compression, noise): :class:`Transform`;
2. in simulations, what adversaries send in place of theirs: :class:`~fedlightning.channel.Attack`;
3. one aggregation of all rows to a vector ``[n]`` (a mean, a median): :class:`Aggregation`;
4. the server's transforms of that vector (noise): :class:`Release`.

What the server knows is added again, and the algorithm's ``server_update`` sees the dataclass that it always sees. No
algorithm knows of channels, and no channel knows of algorithms.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from fedlightning.core.seeding import derive_seed

Fields = Mapping[str, Tensor]
"""Tensors by the name of a field: ``[S, n]`` for S clients, ``[n]`` for one client or for an aggregate."""


@dataclass(frozen=True)
class Exchange:
    """Says between whom an update passes, and when.

    Attributes:
        round: Number of the round, from 0.
        phase: Number of the phase in its round, from 0.
        seed: Seed of the exchange; the same for all clients.
        cohort: Number of clients that are asked for an answer, over all machines and processes, at least 1.
        num_clients: Number of all clients of the federation, N.
        client_ids: The S clients whose updates are transformed here; empty at the server.
        public: What the server has told the transforms of all clients, by name; see :meth:`Transform.public`.
        accumulated: Names of the fields that are increments of something a client keeps, and that the server adds up.
        expected: Mean number of clients that are asked, where the number itself is a secret; None where ``cohort`` is
            none.
        bound: Largest norm that the transforms before this one leave to a client's update, over all fields; None if
            nothing bounds it.
        spent: Sum of :attr:`Transform.spent` over the transforms before this one.
        aggregate: Puts the cohort's updates together; None for the mean.
    """

    round: int
    phase: int
    seed: int
    cohort: int
    num_clients: int
    client_ids: Sequence[int] = ()
    public: Fields = field(default_factory=dict)
    accumulated: frozenset[str] = frozenset()
    expected: float | None = None
    bound: float | None = None
    spent: float = 0.0
    aggregate: Aggregation | None = None

    @property
    def divisor(self) -> float:
        """Return what sums over the cohort are divided by where noise is added: a number that tells nothing."""
        return float(self.cohort) if self.expected is None else self.expected

    def generator(self, client: int | None, purpose: int, device: torch.device) -> torch.Generator:
        """Return a generator for the draws of a client, or of the server for None, which no chunking changes.

        Args:
            client: Id of the client.
            purpose: Distinguishes the parts of a channel: the purpose that a part is given, and never another.
            device: Device of the draws.
        """
        who = (1,) if client is None else (2, client)
        return torch.Generator(device).manual_seed(derive_seed(self.seed, 3, purpose, *who))


@dataclass(frozen=True)
class Sent:
    """Holds what S clients send.

    Attributes:
        values: Differences from what the server knows, ``[S, n]`` by field.
        bits: Bits that each client's field takes on the wire, ``[S]`` float64 by field.
        reports: Numbers that travel beside the update and that the server averages, ``[S]`` by name.
    """

    values: Fields
    bits: Fields
    reports: Fields = field(default_factory=dict)


class Transform(ABC):
    """Changes what each client sends, without looking at other clients.

    Subclasses are frozen dataclasses whose fields are the options. They keep nothing on themselves: what a client
    remembers from round to round is its *memory*, stored with its other states, checkpointed and never sent; what all
    clients have to be told is *public*, kept by the server.
    """

    @abstractmethod
    def apply(self, sent: Sent, memory: Fields, exchange: Exchange, purpose: int) -> tuple[Sent, Fields]:
        """Return what is sent in place of ``sent``, and the clients' new memories.

        Args:
            sent: What the transform before this one returned; not to be written into.
            memory: The clients' memories, ``[S, ...]`` by name.
            exchange: Whose updates these are.
            purpose: For :meth:`Exchange.generator`; no other transform of the channel has the same.
        """

    def memory(self, like: Fields) -> Fields:
        """Return the memory of a client before its first round, ``[...]`` by name; empty without memory.

        Args:
            like: Gives length, dtype and device of one client's fields, ``[n]``.
        """
        return {}

    @property
    def adds_noise(self) -> bool:
        """Return whether it hides single clients, so that no divisor of a mean may tell how many of them count."""
        return False

    @property
    def remembers(self) -> bool:
        """Return whether something may be remembered of each client from one round to the next."""
        return type(self).memory is not Transform.memory

    def public(self) -> Fields:
        """Return what the server tells all clients at the start, small tensors by name; empty for nothing."""
        return {}

    def reported(self) -> Mapping[str, Sequence[float]]:
        """Return the only finite values that some of :attr:`Sent.reports` may have, by name; others may have any.

        Answers from other machines with another value are left out.
        """
        return {}

    def publish(self, public: Fields, reports: Fields, exchange: Exchange, purpose: int) -> Fields:
        """Return what the server tells all clients in the next round.

        Args:
            public: What it told them in this one, as :meth:`public` named it.
            reports: Means over the cohort of :attr:`Sent.reports`, scalars.
            exchange: The exchange that has ended.
            purpose: For :meth:`Exchange.generator`; no other transform of the channel has the same.
        """
        return public

    @property
    def spent(self) -> float:
        """Return the sum of the inverse squared noise multipliers of reports that are released with noise of their own.

        Noise that is added to the update has this much less to hide; 0 where reports tell nothing of clients' data.
        """
        return 0.0

    def bound(self, before: float | None, names: Sequence[str], exchange: Exchange) -> float | None:
        """Return the largest norm that one client's update has after this transform; None if nothing bounds it.

        Args:
            before: The largest norm before it, over all fields together; None if nothing bounds it.
            names: Names of the fields.
            exchange: The exchange, with what the server has told all clients.
        """
        return None


class Rows(Protocol):
    """Gives access to the rows of one field, of all clients that count, over all processes.

    Where several processes hold rows, all of them must call the same methods in the same order.
    """

    @property
    def count(self) -> int:
        """The number of rows, S."""

    def blocks(self) -> Iterator[Tensor]:
        """Yield ``[S, c]`` blocks of consecutive columns, which together are the matrix ``[S, n]``."""

    def gram(self, about: Tensor | None = None) -> Tensor:
        """Return the inner products of the rows, ``[S, S]`` float64 on the CPU.

        Args:
            about: A point ``[n]`` that is subtracted from every row first; None for none. Distances between rows keep
                their digits if it lies among most of the rows, e.g. at their coordinatewise median.
        """

    def combine(self, weights: Tensor) -> Tensor:
        """Return ``weights @ rows``, ``[n]``, in the dtype of the rows, for weights ``[S]`` float64."""


class Aggregation(ABC):
    """Turns the updates of a cohort into one, in place of their mean; subclasses are frozen dataclasses."""

    @property
    def fewest(self) -> int:
        """Return the smallest number of clients whose updates the rule can aggregate, at least 1."""
        return 1

    @property
    def is_mean(self) -> bool:
        """Return whether it returns the mean of all rows, up to rounding, so that nothing else changes.

        Counts are averaged then, of which beside other rules the median is taken; clients may be weighted, and noise
        that is made for a mean hides them.
        """
        return False

    @abstractmethod
    def aggregate(self, rows: Rows) -> Tensor:
        """Return the aggregate ``[n]`` of one field.

        Args:
            rows: The clients' updates of that field. All of them count the same.

        Raises:
            ValueError: If there are too few rows for the rule.
        """

    def lacks_room(self, bound: float, noise: float) -> str | None:
        """Say why a mean of clients' updates, each with a share of noise, would not be what it says; None if it is.

        Args:
            bound: Largest norm of one client's update.
            noise: Standard deviation of a client's noise in every entry.
        """
        return None

    def wire_bits(self, length: int) -> float | None:
        """Return the bits of one client's field of ``length`` entries; None for those that the transforms counted.

        A rule that needs updates in a form of its own, such as masked whole numbers, overrides what transforms count.
        """
        return None


@dataclass(frozen=True)
class Aggregated:
    """Says how the vectors came about that a :class:`Release` sees.

    Attributes:
        exchange: The exchange that has ended.
        divisors: What the sum over clients was divided by, by field: the size of the cohort, or N for increments of a
            mean over all clients.
        bound: Largest norm of one client's update over all its fields together; None if nothing bounds it.
        spent: Sum of :attr:`Transform.spent` over the transforms of the clients.
        purpose: For :meth:`Exchange.generator`; no other part of the channel has the same.
    """

    exchange: Exchange
    divisors: Mapping[str, float]
    bound: float | None
    purpose: int
    spent: float = 0.0


class Release(ABC):
    """Changes what the server received from all clients together; subclasses are frozen dataclasses."""

    @abstractmethod
    def apply(self, values: Fields, aggregated: Aggregated) -> Fields:
        """Return what the algorithm's ``server_update`` sees in place of ``values``, ``[n]`` by field."""
