"""How much noise a budget takes."""

from __future__ import annotations

import math

from fedlightning.channel.privacy.accountants import Accountant
from fedlightning.channel.privacy.sampling import Sampling
from fedlightning.core.errors import InvalidValueError

_LARGEST = 1e6
"""Largest multiplier that is looked at."""


def noise_multiplier(
    accountant: Accountant, sampling: Sampling, releases: int, epsilon: float, delta: float, digits: int = 3
) -> float:
    """Return the smallest noise multiplier with which releases stay within a budget, rounded up.

    Args:
        accountant: Bounds what the releases tell.
        sampling: How their cohorts are chosen.
        releases: Their number, at least 1: rounds times phases.
        epsilon: Budget > 0.
        delta: Budget between 0 and 1.
        digits: Significant digits of the result.

    Raises:
        ValueError: If no noise is enough.
    """

    def spent(multiplier: float) -> float:
        return accountant.epsilon(sampling, {multiplier: releases}, delta)

    high = 1.0
    while spent(high) > epsilon:
        if high >= _LARGEST:
            raise InvalidValueError(
                f"epsilon={epsilon}, delta={delta}: no noise keeps {releases} releases within this budget. Allow "
                "more, or fewer releases."
            )
        high *= 2
    low = high / 2
    while low > 1 / _LARGEST and spent(low) <= epsilon:
        low, high = low / 2, low
    while high / low > 1 + 10.0**-digits / 4:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if spent(middle) <= epsilon else (middle, high)
    return _rounded_up(high, digits)


def _rounded_up(value: float, digits: int) -> float:
    """Return a number with so many significant digits, not below ``value``."""
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return round(math.ceil(value / unit - 1e-9) * unit, 12)
