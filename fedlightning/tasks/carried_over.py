"""Metrics of a task that hold batches of other clients than the one that is evaluated."""

from __future__ import annotations

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

    def begin_client(self) -> None:
        """Begin with a client's first batch."""
        metrics = (each for each in self._task.modules() if isinstance(each, Metric))
        self._held = {metric: metric.update_count for metric in metrics if metric.update_count}

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
        """Warn if a metric was computed over other clients as well, and take note of those that were reset."""
        for metric in self._computed():
            if not self._has_warned:
                self._has_warned = True
                rank_zero_warn(
                    f"{type(self._task).__name__} calls {type(metric).__name__}.compute() while a client is "
                    "evaluated: that is the value of all batches so far, other clients' among them. Log the metric "
                    "itself, self.log(name, metric), which is computed and reset client by client, or reset it."
                )
        self._held = {each: each.update_count for each, count in self._held.items() if each.update_count > count}

    def _computed(self) -> list[Metric]:
        """Return the metrics that were updated in this batch and computed then."""
        return [each for each, count in self._held.items() if each.update_count > count and each._computed is not None]
