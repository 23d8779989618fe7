"""Metrics of torchmetrics over the samples of this process alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torchmetrics import Metric


@contextmanager
def alone(module: nn.Module) -> Iterator[None]:
    """Have a metric, and those inside a module, computed without the other processes.

    These have the samples of other clients, or the same ones. ``sync_on_compute`` does not serve: torchmetrics reads it
    when a metric is made.

    Args:
        module: A metric, or what has metrics. They join the samples of all processes again afterwards, if they did
            before.
    """
    inside = [each for each in module.modules() if isinstance(each, Metric)]
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
