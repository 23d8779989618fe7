"""Metrics as sums over samples, which parties may add up without showing each other their samples."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_sum

from fedlightning.core.errors import InvalidValueError


def sums_of(metric: Metric) -> dict[str, Tensor] | None:
    """Return the sums that a metric is computed from, by the name of its state.

    Args:
        metric: A metric of torchmetrics that has seen some samples.

    Returns:
        Tensors whose sizes do not depend on the number of samples; None for a metric that keeps samples or combines
        its states in another way than by adding them up.
    """
    sums = {}
    for name, reduction in metric._reductions.items():
        state, start = getattr(metric, name), metric._defaults[name]
        if reduction is not dim_zero_sum or not isinstance(start, Tensor) or state.shape != start.shape:
            return None
        sums[name] = state.detach().clone()
    return sums or None


def value_of_sums(metric: Metric, sums: Mapping[str, Tensor]) -> Tensor:
    """Return the value of a metric over all samples that sums were taken over; afterwards the metric is empty.

    Args:
        metric: A metric of the class and the options that the sums come from.
        sums: By the name of the state, as :func:`sums_of` returns them, added up.

    Raises:
        ValueError: If the names or shapes are not those of the metric's states.
    """
    metric.reset()
    expected = {name: tuple(getattr(metric, name).shape) for name in metric._reductions}
    found = {name: tuple(value.shape) for name, value in sums.items()}
    if expected != found:
        raise InvalidValueError(f"{type(metric).__name__} has the states {expected}, the sums are {found}.")
    for name, value in sums.items():
        setattr(metric, name, value.to(getattr(metric, name)))
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The ``compute`` method of metric .* was called before")
            whole: Tensor = metric.compute()
    finally:
        metric.reset()
    return whole
