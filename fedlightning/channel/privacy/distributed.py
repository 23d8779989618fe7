"""Gaussian noise that clients share: each adds a part, so that nobody ever sees the sum without noise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from fedlightning.channel.base import Exchange, Fields, Sent, Transform
from fedlightning.channel.privacy.gaussian import multiplier_beside_counts, refuse_few_digits, refuse_statistics
from fedlightning.channel.privacy.normal_draws import normal_like
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require

_ANSWERED = "answered"


@dataclass(frozen=True)
class DistributedGaussianNoise(Transform):
    """Lets each client add a share of Gaussian noise, all of which together make that of a server.

    The sum over the cohort carries noise of standard deviation ``multiplier * C``, where C is the largest norm that
    clipping leaves to one client's update. This protects clients from a server that learns sums alone, by secure
    aggregation; a server that sees single updates finds little noise on each.

    Args:
        multiplier: z > 0 of the sum.
        answering: Share of the asked clients, above 0 and at most 1, that is enough for the whole noise. Clients that
            do not answer, and those that would tell their shares, count as missing. A round with fewer answers ends the
            fit.
        secure: Whether noise comes from the operating system's cryptographic generator; otherwise it follows from the
            seed, which the server and all other clients know.
    """

    noise_cohort_size: ClassVar[None] = None  # a smaller cohort cannot stand for the shares of a larger one

    multiplier: float
    answering: float = 1.0
    secure: bool = False

    def __post_init__(self) -> None:
        require(self, "multiplier", above=0.0)
        require(self, "answering", above=0.0, at_most=1.0)

    @property
    def adds_noise(self) -> bool:
        """Return True: the shares together hide every client."""
        return True

    def apply(self, sent: Sent, memory: Fields, exchange: Exchange, purpose: int) -> tuple[Sent, Fields]:
        """Return the values with each client's share of the noise.

        Raises:
            ValueError: If nothing bounds the clients' updates, statistics are averaged, numbers have fewer than 32
                bits, or the sum of the cohort has no place for the noise.
        """
        if exchange.bound is None:
            raise InvalidValueError(
                f"DistributedGaussianNoise(multiplier={self.multiplier}): nothing bounds what one client may change. "
                "Put Clip(norm=...) before it, after all that may enlarge updates."
            )
        refuse_statistics(sent.values)
        refuse_few_digits(sent.values)
        multiplier = multiplier_beside_counts(self.multiplier, exchange.spent)
        std = multiplier * exchange.bound / math.sqrt(self.answering * exchange.cohort)
        if exchange.aggregate is not None and (why := exchange.aggregate.lacks_room(exchange.bound, std)):
            raise InvalidValueError(why)
        noisy = {name: value.clone() for name, value in sent.values.items()}
        device = next(iter(noisy.values())).device
        for place, client in enumerate(exchange.client_ids):
            own = {name: value[place] for name, value in noisy.items()}
            draws = normal_like(own, None if self.secure else exchange.generator(client, purpose, device))
            for name, value in own.items():
                value += (std * draws[name]).to(value.dtype)
        answered = torch.ones(len(exchange.client_ids), dtype=torch.float64, device=device)
        dense = {name: 8.0 * value.element_size() * value.shape[1] * answered for name, value in noisy.items()}
        return replace(sent, values=noisy, bits=dense, reports={**sent.reports, _ANSWERED: answered}), memory

    def bound(self, before: float | None, names: Sequence[str], exchange: Exchange) -> float | None:
        """Return the bound without noise, which says what one client's data may change."""
        return before

    def reported(self) -> Mapping[str, Sequence[float]]:
        """Return what a client may say: that it has answered."""
        return {_ANSWERED: (1.0,)}

    def publish(self, public: Fields, reports: Fields, exchange: Exchange, purpose: int) -> Fields:
        """Return what was public before.

        Raises:
            ValueError: If fewer clients answered than ``answering`` promises, so that noise is missing.
        """
        answered = round(float(reports[_ANSWERED]) * exchange.divisor)
        needed = math.ceil(round(self.answering * exchange.cohort, 9))
        if answered < needed:
            raise InvalidValueError(
                f"DistributedGaussianNoise(answering={self.answering}): {answered} of {exchange.cohort} clients "
                f"answered with finite numbers, and the noise needs {needed}. Choose a smaller share."
            )
        return public
