"""Gaussian noise on what the server received from all clients together."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fedlightning.channel.base import Aggregated, Fields, Release
from fedlightning.channel.privacy.normal_draws import normal_like
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require


@dataclass(frozen=True)
class GaussianNoise(Release):
    """Adds Gaussian noise to the sum of the clients' updates, so that no single client can be made out.

    The standard deviation is ``multiplier * C`` in every coordinate of the sum, C being the largest norm that clipping
    leaves to one client's update over all its fields together. The server divides the sum by the number of clients that
    it expects, which does not depend on who answers.

    This protects clients from whoever sees models, not from the server, which sees the sum before the noise; see
    :class:`~fedlightning.channel.privacy.DistributedGaussianNoise`.

    Args:
        multiplier: z > 0, of which ``fedlightning privacy noise`` computes the value that a budget allows.
        noise_cohort_size: Number of clients of a cohort that a smaller one stands for in a simulation: the noise of
            their mean is added to the mean of the cohort. What such a run spends of a budget is that of the large
            cohort. Null for the cohort itself.
        secure: Whether noise comes from the operating system's cryptographic generator. It then differs from run to
            run, also after a resume. Otherwise it follows from the seed: whoever knows the seed can take it off again.
    """

    multiplier: float
    noise_cohort_size: int | None = None
    secure: bool = False

    def __post_init__(self) -> None:
        require(self, "multiplier", above=0.0)
        require(self, "noise_cohort_size", at_least=1, optional=True)

    def apply(self, values: Fields, aggregated: Aggregated) -> Fields:
        """Return the values with noise.

        Raises:
            ValueError: If nothing bounds the clients' updates, a noisy count has used up the noise, statistics are
                averaged, or numbers have fewer than 32 bits.
        """
        if aggregated.bound is None:
            raise InvalidValueError(
                f"GaussianNoise(multiplier={self.multiplier}): nothing bounds what one client may change, so no noise "
                "hides it. Put Clip(norm=...) into the channel's client transforms, after all that may enlarge updates."
            )
        refuse_statistics(values)
        refuse_few_digits(values)
        std = multiplier_beside_counts(self.multiplier, aggregated.spent) * aggregated.bound
        if self.noise_cohort_size is not None:
            std *= aggregated.exchange.divisor / self.noise_cohort_size
        device = next(iter(values.values())).device
        generator = None if self.secure else aggregated.exchange.generator(None, aggregated.purpose, device)
        draws = normal_like(values, generator)
        return {
            name: (value + std / aggregated.divisors[name] * draws[name]).to(value.dtype)
            for name, value in values.items()
        }


def refuse_statistics(values: Fields) -> None:
    """Refuse noise on averaged statistics of layers, whose variances it may bring below zero.

    Args:
        values: What clients send, by field.

    Raises:
        ValueError: If averaged buffers are among the fields.
    """
    if "buffers" in values:
        raise InvalidValueError(
            "buffers='average': with noise, the running variances of BatchNorm may fall below zero. Leave statistics "
            "at the clients (buffers='local'), or normalise by groups."
        )


def refuse_few_digits(values: Fields) -> None:
    """Refuse noise on sums in 16 bits, which one client may move by more than its norm, as every entry is rounded.

    Args:
        values: What clients send, by field.

    Raises:
        ValueError: If a field has fewer than 32 bits a number.
    """
    for name, value in values.items():
        if value.dtype.itemsize < 4:
            raise InvalidValueError(
                f"'{name}' is {value.dtype}: sums are rounded before noise is added, so that one client moves them by "
                "more than noise is made for. Keep parameters in 32 bits, e.g. by precision='bf16-mixed'."
            )


def multiplier_beside_counts(multiplier: float, spent: float) -> float:
    """Return the multiplier of the update's noise, where noisy counts are released beside it.

    Two Gaussian releases with multipliers a and b tell as much as one with ``(a^-2 + b^-2)^(-1/2)`` (Andrew, Thakkar,
    McMahan, Ramaswamy, NeurIPS 2021, Theorem 1), so the update gets somewhat more noise than it would have alone.

    Args:
        multiplier: Of both together.
        spent: Sum of ``b^-2`` over the counts.

    Raises:
        ValueError: If the counts alone tell more.
    """
    left = multiplier**-2 - spent
    if left <= 0:
        raise InvalidValueError(
            f"GaussianNoise(multiplier={multiplier}): the noisy count of AdaptiveClip alone tells more than this noise "
            f"may. Set its count_noise above {multiplier / 2:g}; a twentieth of the cohort is usual."
        )
    return 1 / math.sqrt(left)
