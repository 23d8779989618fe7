"""Metrics of a task that hold batches of other clients than the one that is evaluated."""

from __future__ import annotations

from functools import partial
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch import nn
from torchmetrics import Metric

from fedlightning.core.errors import InvalidValueError


class CarriedOver:
    """Knows which metrics were neither logged nor reset since other clients were evaluated.

    What such a metric computes in a step of one client is the value of all clients so far.
    """

    def __init__(self, task: nn.Module) -> None:
        """Begin before the first client.

        Args:
            task: Has the metrics.
        """
        self._task = task
        self._held: dict[Metric, int] = {}  # with the number of updates at the start of the batch
        self._has_warned = False

    def begin_batch(self, is_first: bool) -> None:
        """Begin with a batch, the client's first or a further one; resets of metrics are noted until it is finished."""
        if is_first:
            self._held = {each: 0 for each in self._task.modules() if isinstance(each, Metric) and each.update_count}
        for metric in self._held:
            self._held[metric] = metric.update_count
            metric.reset = partial(self._reset, metric)  # type: ignore[method-assign]

    def _reset(self, metric: Metric) -> None:
        self._held.pop(metric, None)
        vars(metric).pop("reset", None)
        metric.reset()

    def require_own(self, name: str, value: Any) -> None:
        """Make sure that a number that is logged is none that a metric computed over other clients as well.

        Raises:
            ValueError: If it is.
        """
        for metric in self._computed():
            if metric._computed is value:
                raise InvalidValueError(
                    f"'{name}' is what {type(metric).__name__}.compute() returned, the value of all batches so far, "
                    f"other clients' among them. Log the metric itself, self.log('{name}', metric), after it was "
                    "updated: it is computed and reset client by client."
                )

    def finish_batch(self) -> None:
        """Warn if a metric was computed over other clients as well."""
        for metric in self._computed():
            if not self._has_warned:
                self._has_warned = True
                rank_zero_warn(
                    f"{type(self._task).__name__} calls {type(metric).__name__}.compute() while a client is "
                    "evaluated: that is the value of all batches so far, other clients' among them. Log the metric "
                    "itself, self.log(name, metric), which is computed and reset client by client, or reset it."
                )
        for metric in self._held:
            vars(metric).pop("reset", None)

    def _computed(self) -> list[Metric]:
        """Return the metrics that were updated in this batch and computed then."""
        return [each for each, count in self._held.items() if each.update_count > count and each._computed is not None]
