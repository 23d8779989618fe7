"""What a comparison is about: the metric, the direction that is better, the target, and the round that is reported."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fedlightning.callbacks.history import Row
from fedlightning.compare.arguments import Mode, Report

_EXTREME: dict[Mode, str] = {"max": "highest", "min": "lowest"}
_SAID: dict[Report, str] = {
    "last": "the last round, chosen by nothing",
    "best": "each seed's best round on validation data",
    "best_on_test": "each seed's best round on test data, which is too good by the choice; compare it with tables made "
    "in this way only",
}
_LESS_IS_BETTER = {
    *("loss", "error", "mse", "rmse", "mae", "mape", "nll", "perplexity", "wer", "cer", "ece", "brier", "regret"),
    *("distance", "gap", "residual", "norm", "fid", "drift", "epsilon", "nonzeros", "staleness", "std"),
    *("entropy", "crossentropy", "ce", "bce", "logloss", "kl", "divergence", "rmsle", "msle", "smape", "hinge"),
}


def mode_of(metric: str) -> Mode:
    """Return whether more (``max``) or less (``min``) of a metric is better, judging by the metric's name."""
    return "min" if _LESS_IS_BETTER.intersection(re.split("[^a-z0-9]+", metric.lower())) else "max"


@dataclass(frozen=True)
class Goal:
    """Holds what is compared, and which round of a run is reported.

    Attributes:
        metric: Column of the histories.
        mode: Whether more or less is better.
        target: Value whose cost is reported; None for none.
        report: The round that is reported: the last, or the best by the metric.
    """

    metric: str
    mode: Mode = "max"
    target: float | None = None
    report: Report = "last"

    def best(self, values: Sequence[float]) -> float:
        """Return the best of some values."""
        return max(values) if self.mode == "max" else min(values)

    def better(self, value: float, other: float) -> bool:
        """Return whether a value is better than another one; NaN never is, and everything is better than NaN."""
        if math.isnan(value) or math.isnan(other):
            return not math.isnan(value)
        return value > other if self.mode == "max" else value < other

    def best_row(self, history: Sequence[Row]) -> Row:
        """Return the first of the best rows of a history by the metric, among the rows that have it."""
        best = history[0]
        for row in history[1:]:
            if self.better(row.get(self.metric, math.nan), best.get(self.metric, math.nan)):
                best = row
        return best

    def reported(self, history: Sequence[Row], metric: str) -> float | None:
        """Return a metric's value in the reported round, or its last one; None if the metric is not logged there."""
        if self.report == "last":
            return next((row[metric] for row in reversed(history) if metric in row), None)
        return self.best_row(history).get(metric)

    def reached(self, value: float) -> bool:
        """Return whether a value is as good as the target."""
        assert self.target is not None
        return value >= self.target if self.mode == "max" else value <= self.target

    def cost(self, history: Sequence[Row], column: str) -> float:
        """Return the value of ``column`` at which the target is first reached; infinite if never."""
        return next((row[column] for row in history if self.metric in row and self.reached(row[self.metric])), math.inf)

    def other(self) -> Goal:
        """Return the goal that reports the best round in place of the last one, or the last in place of the best."""
        return replace(self, report="best" if self.report == "last" else "last")

    @property
    def said(self) -> str:
        """Which round is reported, as captions say it."""
        return _SAID[self.report]

    @property
    def short_heading(self) -> str:
        """The heading of a column with the metric of the comparison in the reported round."""
        return "final" if self.report == "last" else f"best ({_EXTREME[self.mode]})"

    def heading(self, metric: str) -> str:
        """Return the heading of a column with a metric in the reported round."""
        if self.report == "last":
            return f"final {metric}"
        where = " on test" if self.report == "best_on_test" else ""
        if metric != self.metric:
            return f"{metric} at the best round{where}"
        return f"best{where} {metric} ({_EXTREME[self.mode]})"
