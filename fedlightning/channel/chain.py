"""Several transforms as one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from torch import Tensor

from fedlightning.channel.base import Exchange, Fields, Sent, Transform
from fedlightning.core.seeding import derive_seed

ValueT = TypeVar("ValueT")


def under(prefix: str, values: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Return values with ``prefix`` and a dot before their names."""
    return {f"{prefix}.{name}": value for name, value in values.items()}


def inside(prefix: str, values: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Return the values that :func:`under` named with a prefix, by the names they had."""
    start = f"{prefix}."
    return {name.removeprefix(start): value for name, value in values.items() if name.startswith(start)}


def joined(values: Iterable[tuple[str, Mapping[str, ValueT]]]) -> dict[str, ValueT]:
    """Return the values of several parts, given with the parts' names, each under the name of its part."""
    return {name: value for part, own in values for name, value in under(part, own).items()}


@dataclass(frozen=True)
class Part:
    """Gives a transform inside another one names and random numbers of its own.

    Attributes:
        name: Distinguishes it among the transforms inside the same one.
        number: The same as a number.
        transform: The transform.
    """

    name: str
    number: int
    transform: Transform

    def apply(self, sent: Sent, memory: Fields, exchange: Exchange, purpose: int) -> tuple[Sent, dict[str, Tensor]]:
        """Return what :meth:`Transform.apply` does, with memory and new reports under the name of this part."""
        own, kept = self.transform.apply(
            replace(sent, reports={}), inside(self.name, memory), self.told(exchange), self.purpose(purpose)
        )
        return replace(own, reports={**sent.reports, **under(self.name, own.reports)}), under(self.name, kept)

    def publish(self, public: Fields, reports: Fields, exchange: Exchange, purpose: int) -> dict[str, Tensor]:
        """Return what :meth:`Transform.publish` does, under the name of this part."""
        own = self.transform.publish(
            inside(self.name, public), inside(self.name, reports), self.told(exchange), self.purpose(purpose)
        )
        return under(self.name, own)

    def told(self, exchange: Exchange) -> Exchange:
        """Return the exchange with what the server has told this part."""
        return replace(exchange, public=inside(self.name, exchange.public))

    def purpose(self, purpose: int) -> int:
        """Return a purpose for the draws of this part."""
        return derive_seed(purpose, self.number)


class Composed(Transform):
    """Is made of other transforms, whose memories, reports and public values it keeps apart by name."""

    @property
    @abstractmethod
    def parts(self) -> Sequence[Part]:
        """Return the transforms in their order, with the names that tell them apart."""

    @property
    def adds_noise(self) -> bool:
        """Return whether any transform hides single clients."""
        return any(part.transform.adds_noise for part in self.parts)

    @property
    def remembers(self) -> bool:
        """Return whether any transform remembers something of each client."""
        return any(part.transform.remembers for part in self.parts)

    def public(self) -> Fields:
        """Return what the server tells clients at the start, for all transforms."""
        return joined((part.name, part.transform.public()) for part in self.parts)

    def reported(self) -> Mapping[str, Sequence[float]]:
        """Return the only values that reports may have, for all transforms."""
        return joined((part.name, part.transform.reported()) for part in self.parts)

    def publish(self, public: Fields, reports: Fields, exchange: Exchange, purpose: int) -> Fields:
        """Return what the server tells clients in the next round, for all transforms."""
        told: dict[str, Tensor] = {}
        for part in self.parts:
            told |= part.publish(public, reports, exchange, purpose)
        return told

    @property
    def spent(self) -> float:
        """Return what the reports of all transforms have spent."""
        return sum(part.transform.spent for part in self.parts)


@dataclass(frozen=True)
class Chain(Composed):
    """Applies transforms one after the other.

    Args:
        transforms: The transforms, in the order in which a client applies them.
    """

    transforms: Sequence[Transform] = ()

    @property
    def parts(self) -> list[Part]:
        """Return the transforms by their places."""
        return [Part(str(place), place, transform) for place, transform in enumerate(self.transforms)]

    def apply(self, sent: Sent, memory: Fields, exchange: Exchange, purpose: int) -> tuple[Sent, Fields]:
        """Return what the last transform returns, and the memories of all."""
        after: dict[str, Tensor] = {}
        for part in self.parts:
            bound, spent = part.transform.bound(exchange.bound, list(sent.values), part.told(exchange)), exchange.spent
            sent, kept = part.apply(sent, memory, exchange, purpose)
            exchange = replace(exchange, bound=bound, spent=spent + part.transform.spent)
            after |= kept
        return sent, after

    def memory(self, like: Fields) -> Fields:
        """Return the memories of all transforms."""
        return joined((part.name, part.transform.memory(like)) for part in self.parts)

    def bound(self, before: float | None, names: Sequence[str], exchange: Exchange) -> float | None:
        """Return the bound after the last transform."""
        for part in self.parts:
            before = part.transform.bound(before, names, part.told(exchange))
        return before
