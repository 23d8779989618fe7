"""What releases with Gaussian noise tell of one client, as epsilon and delta; the accounting is that of dp-accounting.

``dp-accounting`` is Google's library of tested bounds; nothing of it is written anew here. It is an extra of its own,
since most users need none of it and it holds the package ``attrs`` below version 24.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fedlightning.channel.privacy.sampling import FixedSizeSampling, Sampling
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.requirements import imported
from fedlightning.core.validation import require

Releases = Mapping[float, int]
"""Number of releases by their noise multiplier."""

Part = tuple[Sampling, Releases]
"""Releases whose cohorts were chosen in one way."""


class Accountant(ABC):
    """Bounds what releases tell; subclasses are frozen dataclasses."""

    def epsilon(self, sampling: Sampling, releases: Releases, delta: float) -> float:
        """Return the epsilon of all releases together; infinite where they hide nothing.

        Args:
            sampling: How the cohort of each release is chosen.
            releases: The releases.
            delta: Between 0 and 1.

        Raises:
            ValueError: If cohorts are empty too often for this delta, or the accountant has no bounds for the sampling.
        """
        return self.epsilon_of([(sampling, releases)], delta)

    def epsilon_of(self, parts: Sequence[Part], delta: float) -> float:
        """Return the epsilon of all parts together; infinite where they hide nothing.

        A round with an empty cohort releases nothing, which nobody has noised. If some data make this happen with
        probability t, then epsilon holds for ``delta + (1 + e^epsilon) t``; so much less of ``delta`` is left.

        Args:
            parts: The releases, by how their cohorts were chosen.
            delta: Between 0 and 1.

        Raises:
            ValueError: If cohorts are empty too often for this delta, the accountant has no bounds for a sampling, or
                the parts protect against different changes of the data.
        """
        made = [(sampling, {z: count for z, count in releases.items() if count}) for sampling, releases in parts]
        parts = [(sampling, releases) for sampling, releases in made if releases]
        if not parts:
            return 0.0
        if len({sampling.relation for sampling, _ in parts}) > 1:
            shown = " and ".join(f"{sampling}, which hides {sampling.protects}" for sampling, _ in parts)
            raise InvalidValueError(
                f"{shown}: one epsilon cannot stand for both. Draw all cohorts with Poisson or Full, or all "
                "with Uniform."
            )
        epsilon = self.curve(parts)
        empty = chance_of_empty(parts)
        if empty:
            if uses_up(parts, delta):
                most = max((sampling for sampling, _ in parts), key=lambda sampling: sampling.empty)
                raise InvalidValueError(
                    f"{most}: a cohort is empty with a probability of {most.empty:.2g}, and its round is "
                    f"skipped, which tells more than delta={delta} allows. Choose a higher rate."
                )
            charge = empty * (1 + math.exp(min(epsilon(delta / 2), 700.0)))
            if charge > delta / 2:
                return math.inf
            delta -= charge
        return epsilon(delta)

    @abstractmethod
    def curve(self, parts: Sequence[Part]) -> Callable[[float], float]:
        """Return epsilon as a function of delta, for releases none of which has an empty cohort.

        Args:
            parts: The releases, at least one, by how their cohorts were chosen; all of one relation.

        Raises:
            ValueError: If the accountant has no bounds for a sampling.
        """


@dataclass(frozen=True)
class RDP(Accountant):
    """Bounds what releases tell by their Rényi divergences (Mironov, 2017): fast, and somewhat too careful.

    Args:
        orders: Orders of the divergences, each above 1; null for those of ``dp-accounting``.
    """

    orders: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.orders is None:
            return
        object.__setattr__(self, "orders", tuple(self.orders))
        if not self.orders or any(order <= 1 for order in self.orders):
            raise InvalidValueError(f"RDP(orders={self.orders!r}): expected numbers above 1.")

    def curve(self, parts: Sequence[Part]) -> Callable[[float], float]:
        """Return epsilon as a function of delta."""
        terms = [
            (count, *_divergences(self, sampling, multiplier))
            for sampling, releases in parts
            for multiplier, count in releases.items()
        ]
        total = sum(count * divergences for count, _, divergences in terms)
        compute_epsilon = imported("dp_accounting").rdp.compute_epsilon
        return lambda delta: float(compute_epsilon(terms[0][1], total, delta)[0])


@dataclass(frozen=True)
class PLD(Accountant):
    """Bounds what releases tell by their privacy loss distribution (Koskela et al., 2020): tight, and slower.

    It knows no cohorts of a fixed size.

    Args:
        interval: Width > 0 of the steps in which losses are counted.
    """

    interval: float = 1e-4

    def __post_init__(self) -> None:
        require(self, "interval", above=0.0)

    def curve(self, parts: Sequence[Part]) -> Callable[[float], float]:
        """Return epsilon as a function of delta.

        Raises:
            ValueError: If cohorts are of a fixed size.
        """
        for sampling, _ in parts:
            if isinstance(sampling, FixedSizeSampling):
                raise InvalidValueError(
                    f"PLD(): no bounds are known for cohorts of a fixed size ({sampling.size} of "
                    f"{sampling.num_clients} clients). Use RDP(), or "
                    f"Poisson(rate={sampling.size / sampling.num_clients:g})."
                )
        events = imported("dp_accounting")
        relation = events.NeighboringRelation[parts[0][0].relation]
        accountant = events.pld.PLDAccountant(relation, self.interval)
        for sampling, releases in parts:
            for multiplier, count in releases.items():
                accountant.compose(sampling.event(multiplier), count)
        return lambda delta: float(accountant.get_epsilon(delta))


def chance_of_empty(parts: Sequence[Part]) -> float:
    """Return a bound on the probability that any release has an empty cohort."""
    return sum(sampling.empty * sum(releases.values()) for sampling, releases in parts)


def uses_up(parts: Sequence[Part], delta: float) -> bool:
    """Return whether cohorts are empty so often that nothing of delta is left, whatever the noise."""
    return 4 * chance_of_empty(parts) > delta


@lru_cache(maxsize=256)
def _divergences(accountant: RDP, sampling: Sampling, multiplier: float) -> tuple[Any, Any]:
    """Return the orders and the Rényi divergences of one release; those of many are multiples of them."""
    events = imported("dp_accounting")
    relation = events.NeighboringRelation[sampling.relation]
    of_one = events.rdp.RdpAccountant(accountant.orders, neighboring_relation=relation)
    with _without_advice():
        of_one.compose(sampling.event(multiplier))
    return of_one.orders, of_one.rdp


@contextmanager
def _without_advice() -> Iterator[None]:
    """Hide lines that say which orders were left out, which makes a bound no less true."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
