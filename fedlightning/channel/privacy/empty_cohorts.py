"""Whether cohorts that may be empty leave anything of delta, and what to do where they do not."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from fedlightning.channel.privacy.accountants import Accountant, Part, Releases, chance_of_empty, uses_up
from fedlightning.channel.privacy.sampling import PoissonSampling, Sampling
from fedlightning.core.errors import InvalidValueError


def leaves_delta(accountant: Accountant, parts: Sequence[Part], delta: float) -> bool:
    """Return whether releases have a finite epsilon, which they have not if their cohorts are empty too often."""
    return not uses_up(parts, delta) and math.isfinite(accountant.epsilon_of(parts, delta))


def check_empty_cohorts(
    accountant: Accountant, before: Sequence[Part], sampling: Sampling, once: Releases, rounds: int, delta: float
) -> None:
    """Make sure that empty cohorts leave something of delta to the end of a fit.

    Args:
        accountant: Bounds what releases tell.
        before: What was released before the fit.
        sampling: How the cohorts of the fit are drawn.
        once: The releases of one round.
        rounds: Number of rounds of the fit.
        delta: Between 0 and 1.

    Raises:
        ValueError: If empty cohorts use delta up, with the rounds that fit and the smallest rate that would do.
    """

    def allowed(drawn: Sampling, times: int) -> bool:
        releases = {multiplier: count * times for multiplier, count in once.items()}
        return leaves_delta(accountant, [*before, (drawn, releases)], delta)

    if not isinstance(sampling, PoissonSampling) or allowed(sampling, rounds):
        return
    fitting = max(0, bisect_left(range(rounds + 1), True, key=lambda times: not allowed(sampling, times)) - 1)
    releases = {multiplier: count * rounds for multiplier, count in once.items()}
    factor = 4 * chance_of_empty([*before, (sampling, releases)]) / delta
    rates = range(math.ceil(sampling.rate * 1000), 1000)
    index = bisect_left(rates, True, key=lambda rate: allowed(replace(sampling, rate=rate / 1000), rounds))
    remedy = f"Poisson(rate={rates[index] / 1000:g}), " if index < len(rates) else ""
    raise InvalidValueError(
        f"{sampling}: a cohort is empty with a probability of {sampling.empty:.2g}, and its round is skipped, which no "
        f"noise hides. Over {rounds} rounds this takes {factor:.3g} times what delta={delta:g} has for it, and epsilon "
        f"would be infinite. {fitting} rounds are possible; for {rounds} take {remedy}more clients, or a larger delta."
    )
