"""Percentiles of a metric over clients."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require_argument, spoken_name

PERCENTILES: tuple[float, ...] = (10.0, 50.0, 90.0)
"""The percentiles that are logged unless others are chosen."""


def percentiles(values: Tensor, which: Sequence[float]) -> dict[str, float]:
    """Return percentiles of the values by the suffix of their names: ``_p10``, ``_p50``, ``_p2.5``.

    Between two values they are interpolated linearly, as ``numpy.percentile`` does. They are NaN if a value is NaN, and
    those beside an infinite value may be.

    Args:
        values: One value a client, ``[S]``; none for an empty result.
        which: Percentiles, each from 0 to 100.
    """
    if not len(values) or not which:
        return {}
    ordered = values.detach().cpu().double().sort().values  # torch.quantile takes 16 million values at most
    if ordered[-1].isnan():
        return {suffix(each): torch.nan for each in which}
    places = torch.tensor(which, dtype=torch.float64) / 100 * (len(ordered) - 1)
    low, high = places.floor().long(), places.ceil().long()
    below, above = ordered[low], ordered[high]
    between = torch.where((above - below).isfinite(), torch.lerp(below, above, places - low), below + above)
    found = torch.where(low == high, below, between)
    return {suffix(each): value for each, value in zip(which, found.tolist(), strict=True)}


def suffix(percentile: float) -> str:
    """Return what follows a metric's name in the name of its percentile."""
    return f"_p{percentile:g}"


def require_percentiles(owner: object, given: Sequence[float]) -> tuple[float, ...]:
    """Return the given percentiles as a tuple.

    Raises:
        TypeError: If one is no number.
        ValueError: If one is not from 0 to 100, or two have one name.
    """
    for each in given:
        require_argument(owner, "percentiles", each, at_least=0.0, at_most=100.0)
    if len({suffix(each) for each in given}) < len(given):
        raise InvalidValueError(f"{spoken_name(owner)}(percentiles={list(given)}): expected each percentile once.")
    return tuple(given)
