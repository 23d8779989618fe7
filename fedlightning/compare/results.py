"""Results of a comparison by algorithm, as CSV and as a Markdown table."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from fedlightning.callbacks.history import Row
from fedlightning.compare.goal import Goal
from fedlightning.compare.grid import final_value
from fedlightning.compare.intervals import CONFIDENCE, half_width
from fedlightning.compare.run import Run
from fedlightning.core.errors import InvalidValueError


@dataclass(frozen=True)
class Curve:
    """Holds the results of one algorithm over all seeds.

    Attributes:
        name: Of the algorithm.
        histories: Rows of each seed's run that ended with a finite model and a finite metric.
        diverged: Number of seeds that did not.
        tests: Test metrics of each seed's model of the reported round; empty where it was not tested.
        seeds: The seeds of these runs; 0, 1, ... if none are given.
    """

    name: str
    histories: tuple[tuple[Row, ...], ...]
    diverged: int = 0
    tests: tuple[Row, ...] = ()
    seeds: tuple[int, ...] = ()

    def reported(self, metric: str, goal: Goal) -> list[float]:
        """Return each seed's value of a metric in the reported round; empty if the algorithm does not log it."""
        return list(self.by_seed(metric, goal).values())

    def by_seed(self, metric: str, goal: Goal) -> dict[int, float]:
        """Return the same by seed, without seeds for which there is no value."""
        seeds = self.seeds or range(len(self.histories))
        found = {seed: goal.reported(h, metric) for seed, h in zip(seeds, self.histories, strict=True)}
        return {seed: value for seed, value in found.items() if value is not None}

    def tested(self, metric: str) -> list[float]:
        """Return each seed's test value of a validation metric, ``test_x`` for ``val_x``."""
        name = _of_test(metric)
        return [test[name] for test in self.tests if name in test]


VIRTUAL = "virtual_seconds"
"""Column of histories whose runs have a virtual clock."""

COSTS = {
    "round": "rounds",
    "seconds": "seconds",
    "upload": "upload",
    "download": "download",
    "upload_bytes": "bytes up",
    "download_bytes": "bytes down",
    VIRTUAL: "virtual seconds",
}
"""Columns of histories that a metric is held against, and what tables call them."""


def require_axes(axes: Sequence[str]) -> None:
    """Make sure that a metric can be held against the given columns.

    Raises:
        ValueError: If there are none, or one is unknown or named twice.
    """
    wrong = [axis for place, axis in enumerate(axes) if axis not in COSTS or axis in axes[:place]]
    if wrong or not axes:
        given = " ".join(map(str, axes))
        raise InvalidValueError(f"--axes {given}: expected one or more of {', '.join(COSTS)}, each once.")


def collect(runs: Sequence[Run], names: Iterable[str], goal: Goal) -> list[Curve]:
    """Return finished runs by algorithm, in the order of the names; no runs mean that the search diverged.

    A run whose reported metric is infinite or not a number counts as diverged, as it does in a search.
    """
    curves = []
    for name in names:
        own = [run for run in runs if run.name == name]
        finished = [run for run in own if math.isfinite(final_value(run, goal))]
        histories = tuple(tuple(run.history) for run in finished)
        tests = tuple(run.summary["test"] for run in finished)
        curves.append(Curve(name, histories, len(own) - len(finished), tests, tuple(run.seed for run in finished)))
    return curves


def write_csv(runs: Sequence[Run], path: Path) -> None:
    """Write all histories to a CSV file, one line per validation."""
    rows = [{"algorithm": run.name, "seed": run.seed, **row} for run in runs for row in run.history]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def markdown_table(
    curves: Sequence[Curve],
    goal: Goal,
    also: Sequence[str] = (),
    axes: Sequence[str] = ("round", "upload"),
    baseline: str | None = None,
) -> str:
    """Return a table of reported, final and best values, cost of the target, test values and upload.

    Values are means over seeds with half the width of their confidence interval; :func:`caption` says so.

    Args:
        curves: Algorithms.
        goal: What is compared, and which round is reported.
        also: Further metrics, given of the reported round; "-" where an algorithm does not log one.
        axes: Costs in which the target is counted; with ``upload_bytes`` all bytes are given, too.
        baseline: Name of the algorithm to which differences are given, paired by seed; None for the first one.
    """
    base = next((curve for curve in curves if curve.name == baseline), curves[0])
    other = goal.other()
    header = ["algorithm", goal.heading(goal.metric)]
    header += [f"difference to {base.name}"] * (len(curves) > 1)
    header += [other.short_heading, *map(goal.heading, also)]
    tested = [name for name in (goal.metric, *also) if any(curve.tested(name) for curve in curves)]
    if goal.target is not None:
        header += [f"{COSTS[axis]} to {goal.target:g}" for axis in axes]
    totals = {"upload": "floats up"} | ({"upload_bytes": "bytes up"} if "upload_bytes" in axes else {})
    header += [*map(_of_test, tested), *totals.values()]
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    for curve in curves:
        if not curve.histories:
            lines.append([curve.name, "diverged", *["-"] * (len(header) - 2)])
            continue
        line = [curve.name, _spread(curve.reported(goal.metric, goal))]
        line += [_difference(curve, base, goal)] * (len(curves) > 1)
        line += [_spread(curve.reported(goal.metric, other))]
        line += [_spread(curve.reported(name, goal)) for name in also]
        if goal.target is not None:
            line += [_cost([goal.cost(h, column) for h in curve.histories]) for column in axes]
        line += [_spread(curve.tested(name)) for name in tested]
        line += [shortened(mean(history[-1][column] for history in curve.histories)) for column in totals]
        if curve.diverged:
            line[0] += f" ({curve.diverged} {'seed' if curve.diverged == 1 else 'seeds'} diverged)"
        lines.append(line)
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def caption(
    curves: Sequence[Curve], goal: Goal, validates_on_test: bool = False, searched_seed: int | None = None
) -> str:
    """Return what a table and a figure leave unsaid: the reported round, and what stands behind a plus-minus sign.

    Args:
        curves: Algorithms.
        goal: What is compared, and which round is reported.
        validates_on_test: Whether the validation data are the test data.
        searched_seed: The seed with which a grid's values were chosen; None if there was no grid.
    """
    seeds = max((len(curve.histories) for curve in curves), default=0)
    fewer = any(curve.histories and curve.diverged for curve in curves)
    over = f"the seeds that did not diverge, {seeds} at most" if fewer else f"{seeds} seeds"
    spread = (
        f"±: half the width of the {CONFIDENCE:.0%} confidence interval of a mean over {over} (Student's t)."
        if seeds > 1
        else "One seed: there is no interval."
    )
    paired = " Differences are paired by seed." if len(curves) > 1 and seeds > 1 else ""
    same = " The validation data are the test data." if validates_on_test else ""
    searched = "" if searched_seed is None else f" {_search_said(searched_seed, validates_on_test)}"
    return f"Reported: {goal.said}. {spread}{paired}{same}{searched}"


def _search_said(seed: int, validates_on_test: bool) -> str:
    said = f"The grid's values were chosen by seed {seed}"
    return said + (", on test data: too good by the choice." if validates_on_test else " on validation data.")


def _of_test(metric: str) -> str:
    return f"test_{metric.removeprefix('val_')}"


def _difference(curve: Curve, base: Curve, goal: Goal) -> str:
    """Return the mean difference to another algorithm over the seeds of both."""
    if curve is base:
        return "-"
    own, theirs = (each.by_seed(goal.metric, goal) for each in (curve, base))
    paired = [value - theirs[seed] for seed, value in own.items() if seed in theirs]
    note = f" ({len(paired)} of {len(own)} seeds)" if 0 < len(paired) < len(own) else ""
    return _spread(paired, "+") + note


def _spread(values: Sequence[float], sign: str = "") -> str:
    if not values:
        return "-"
    centre, width = mean(values), half_width(values) if all(map(math.isfinite, values)) else None
    style = ".3f" if centre == 0 or max(abs(centre), width or 0.0) >= 0.01 else ".2e"
    return f"{centre:{sign}{style}}" + ("" if width is None else f" ± {width:{style}}")


def _cost(costs: Sequence[float]) -> str:
    reached = [cost for cost in costs if math.isfinite(cost)]
    if not reached:
        return "not reached"
    note = "" if len(reached) == len(costs) else f" ({len(reached)} of {len(costs)} seeds)"
    return f"{shortened(mean(reached))}{note}"


def shortened(number: float) -> str:
    """Return a number of three digits and a unit: 1.23 M."""
    if not number >= 1e4:
        return f"{number:.3g}" if abs(number) < 100 else f"{number:.0f}"
    rounded = float(f"{number:.3g}")  # 999,999 are 1 M, not 1e+03 k
    size, unit = next((size, unit) for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if rounded >= size)
    return f"{rounded / size:.3g} {unit}"
