"""What a way of choosing cohorts hides of who took part, and against which change of the data."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.requirements import imported
from fedlightning.participation import (
    Asynchronous,
    FirstResponders,
    Full,
    Participation,
    Poisson,
    Timed,
    Uniform,
    WaitForAll,
)


@dataclass(frozen=True)
class Sampling(ABC):
    """Says how the clients of each release are chosen from N clients; subclasses are frozen dataclasses.

    Args:
        num_clients: N, which is no secret.
    """

    num_clients: int

    @property
    @abstractmethod
    def relation(self) -> str:
        """Return which federations an attacker cannot tell apart, as ``dp-accounting`` names it."""

    @property
    @abstractmethod
    def protects(self) -> str:
        """Return the same in words."""

    @property
    @abstractmethod
    def expected(self) -> float:
        """Return the mean size of a cohort."""

    @abstractmethod
    def scaled(self, num_clients: int, cohort: int) -> Sampling:
        """Return the same way of choosing larger cohorts from more clients, which a simulation stands for."""

    @property
    def empty(self) -> float:
        """Return the probability that a cohort is empty, so that nothing is released, whoever else is there."""
        return 0.0

    @abstractmethod
    def event(self, multiplier: float) -> Any:
        """Return a release as an event of ``dp-accounting``.

        Args:
            multiplier: Standard deviation of the noise on the sum, in units of the largest norm of a client's update.
        """


@dataclass(frozen=True)
class EveryClient(Sampling):
    """Describes releases of all clients."""

    @property
    def relation(self) -> str:
        """Return the relation of add and remove: a client that is absent adds zero, one client moves the sum by C."""
        return "ADD_OR_REMOVE_ONE"

    @property
    def protects(self) -> str:
        """Return the relation in words."""
        return "one client's updates, or zeros in their place"

    @property
    def expected(self) -> float:
        """Return N."""
        return float(self.num_clients)

    def scaled(self, num_clients: int, cohort: int) -> Sampling:
        """Return releases of all of more clients.

        Raises:
            ValueError: If the cohort is not all of them.
        """
        if num_clients != cohort:
            raise InvalidValueError(
                f"population={num_clients}: all clients take part in every round here, so the cohort of {cohort} that "
                "the noise is made for is the whole population. Use Poisson or Uniform for a part of it."
            )
        return EveryClient(num_clients)

    def event(self, multiplier: float) -> Any:
        """Return a Gaussian release."""
        return imported("dp_accounting").GaussianDpEvent(multiplier)


@dataclass(frozen=True)
class PoissonSampling(Sampling):
    """Describes releases of clients that each take part with a probability of their own.

    Args:
        rate: This probability, above 0 and below 1.
    """

    rate: float

    def __str__(self) -> str:
        """Return the participation in a user's words."""
        return f"Poisson(rate={self.rate:g}) with {self.num_clients} clients"

    @property
    def relation(self) -> str:
        """Return the relation of add and remove, under which one client moves the sum by C."""
        return "ADD_OR_REMOVE_ONE"

    @property
    def protects(self) -> str:
        """Return the relation in words."""
        return "one client's updates, or nothing in their place"

    @property
    def expected(self) -> float:
        """Return ``rate * N``."""
        return self.rate * self.num_clients

    def scaled(self, num_clients: int, cohort: int) -> Sampling:
        """Return Poisson samples of the mean size ``cohort``."""
        return PoissonSampling(num_clients, cohort / num_clients)

    @property
    def empty(self) -> float:
        """Return ``(1 - rate)^(N - 1)``."""
        return float((1 - self.rate) ** (self.num_clients - 1))

    def event(self, multiplier: float) -> Any:
        """Return a Gaussian release of a Poisson sample."""
        events = imported("dp_accounting")
        return events.PoissonSampledDpEvent(self.rate, events.GaussianDpEvent(multiplier))


@dataclass(frozen=True)
class FixedSizeSampling(Sampling):
    """Describes releases of cohorts of a fixed size, drawn without replacement.

    Args:
        size: Number of clients of a cohort, less than N.
    """

    size: int

    @property
    def relation(self) -> str:
        """Return the relation of replacement, under which one client moves the sum by 2 C."""
        return "REPLACE_ONE"

    @property
    def protects(self) -> str:
        """Return the relation in words."""
        return "one client's updates, or any others in their place"

    @property
    def expected(self) -> float:
        """Return the size."""
        return float(self.size)

    def scaled(self, num_clients: int, cohort: int) -> Sampling:
        """Return cohorts of the size ``cohort``."""
        return FixedSizeSampling(num_clients, cohort)

    def event(self, multiplier: float) -> Any:
        """Return a Gaussian release of a sample without replacement, its noise in units of 2 C."""
        events = imported("dp_accounting")
        return events.SampledWithoutReplacementDpEvent(
            self.num_clients, self.size, events.GaussianDpEvent(multiplier / 2)
        )


@singledispatch
def sampling_of(participation: Participation, num_clients: int) -> Sampling:
    """Return what a way of choosing cohorts hides.

    Args:
        participation: The way.
        num_clients: N.

    Raises:
        TypeError: If nothing is known of this kind of participation.
        ValueError: If it does not choose at random.
    """
    raise InvalidTypeError(
        f"{type(participation).__name__}: no account of privacy knows this participation. Use Poisson(rate=...), "
        "Uniform(size=...) or Full(), or say what it hides: sampling_of.register(...)."
    )


@sampling_of.register
def _(participation: FirstResponders, num_clients: int) -> Sampling:
    raise InvalidValueError(
        f"FirstResponders(size={participation.size}): who answers first is not drawn at random, so that an account of "
        "privacy that counts on random cohorts would be wrong. Use Poisson(rate=...), Uniform(size=...) or Full()."
    )


@sampling_of.register
def _(participation: Asynchronous, num_clients: int) -> Sampling:
    raise InvalidValueError(
        f"Asynchronous(buffer={participation.buffer}): who fills the buffer is a matter of how fast clients are, so "
        "that an account of privacy that counts on random cohorts would be wrong. Use Poisson(rate=...), "
        "Uniform(size=...) or Full()."
    )


@sampling_of.register
def _(participation: Timed, num_clients: int) -> Sampling:
    return sampling_of(participation.synchronous, num_clients)


@sampling_of.register
def _(participation: WaitForAll, num_clients: int) -> Sampling:
    # The cohort is asked again, never drawn again, and a lost answer is sent once more as it was.
    rule = Full() if participation.rule is None else participation.rule
    return sampling_of(rule, num_clients)


@sampling_of.register
def _(participation: Full, num_clients: int) -> Sampling:
    return EveryClient(num_clients)


@sampling_of.register
def _(participation: Poisson, num_clients: int) -> Sampling:
    return EveryClient(num_clients) if participation.rate == 1.0 else PoissonSampling(num_clients, participation.rate)


@sampling_of.register
def _(participation: Uniform, num_clients: int) -> Sampling:
    size = len(participation.cohort(num_clients, 0, 0, 0))
    return EveryClient(num_clients) if size == num_clients else FixedSizeSampling(num_clients, size)
