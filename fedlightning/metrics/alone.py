"""Metrics of torchmetrics over the samples of this process alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchmetrics import Metric


@contextmanager
def alone(metric: Metric) -> Iterator[None]:
    """Have a metric, and those inside it, computed without the other processes, whose clients are others.

    ``sync_on_compute`` does not serve: torchmetrics reads it when a metric is made.

    Args:
        metric: Joins the samples of all processes again afterwards, if it did before.
    """
    inside = [each for each in metric.modules() if isinstance(each, Metric)]
    before = [each.distributed_available_fn for each in inside]
    try:
        for each in inside:
            each.distributed_available_fn = _unavailable
        yield
    finally:
        for each, available in zip(inside, before, strict=True):
            each.distributed_available_fn = available


def _unavailable() -> bool:
    return False
