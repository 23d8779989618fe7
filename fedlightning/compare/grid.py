"""A small grid search: which values of named hyper-parameters suit each algorithm best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from fedlightning.compare.goal import Goal
from fedlightning.compare.run import Run
from fedlightning.core.errors import InvalidValueError

Values = tuple[str, ...]
"""Overrides of one grid point, ``key=value`` each."""


def parse_grid(entries: Sequence[str]) -> dict[str, list[str]]:
    """Parse ``name=value,value,...`` entries; a value may be a pair or a mapping, ``[0.1,0.3],{x: 0.2}``.

    Raises:
        ValueError: If an entry has no name or no value, a value is empty, a bracket is not closed, or a name comes
            twice.
    """
    grid: dict[str, list[str]] = {}
    for entry in entries:
        name, _, values = entry.partition("=")
        if not name or not values or name in grid:
            raise InvalidValueError(f"--grid {entry}: expected name=value,value,..., each name once.")
        grid[name] = split_outside_brackets(values, ",")
        if not all(grid[name]):
            raise InvalidValueError(f"--grid {entry}: a value is empty. Remove one comma.")
        if any(value.count("[") != value.count("]") or value.count("{") != value.count("}") for value in grid[name]):
            raise InvalidValueError(f"--grid {entry}: a bracket is not closed.")
    return grid


def split_outside_brackets(values: str, separator: str) -> list[str]:
    """Split a text at separators, except within a pair or a mapping."""
    parts, depth = [""], 0
    for character in values:
        depth += (character in "[{") - (character in "]}")
        if character == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def grid_points(grid: Mapping[str, Sequence[str]], hyper_parameters: Mapping[str, str]) -> list[Values]:
    """Return all combinations of values for one algorithm.

    Args:
        grid: Names and values. A name with dots is a key of ``fedlightning fit``; one without is a hyper-parameter of
            the algorithm or of its local solver, and left out where neither has one of that name.
        hyper_parameters: Names they have, and their keys.
    """
    known = {name: values for name, values in grid.items() if "." in name or name in hyper_parameters}
    keys = [hyper_parameters.get(name, name) for name in known]
    return [
        tuple(f"{key}={value}" for key, value in zip(keys, point, strict=True))
        for point in itertools.product(*known.values())
    ]


def untuned(grid: Mapping[str, Sequence[str]], chosen: Mapping[str, Values]) -> str:
    """Return a sentence on algorithms that a name of the grid leaves as they were, for want of such a hyper-parameter.

    Args:
        grid: Names and values.
        chosen: Each algorithm's grid point; keys end in the names of its hyper-parameters.

    Returns:
        The sentence; empty if every name is one of every algorithm.
    """
    lacking = {name: [each for each in grid if "." not in each and each not in _tuned(chosen[name])] for name in chosen}
    said = "; ".join(f"{name} has no {', '.join(names)}" for name, names in lacking.items() if names)
    return f"Not tuned by all of the grid: {said}." if said else ""


def _tuned(values: Values) -> set[str]:
    return {value.partition("=")[0].rpartition(".")[2] for value in values}


def label(values: Values) -> str:
    """Return a short text for a grid point."""
    return ", ".join(_short(value) for value in values)


def final_value(run: Run, goal: Goal) -> float:
    """Return a finished run's metric in the reported round; the worst possible value if the run diverged."""
    worst = -math.inf if goal.mode == "max" else math.inf
    history = run.history
    if run.summary["diverged"]:
        return worst
    value = goal.reported(history, goal.metric)
    return value if value is not None and math.isfinite(value) else worst


def best_points(searched: Mapping[str, Mapping[Values, Run]], goal: Goal) -> dict[str, Values]:
    """Return each algorithm's grid point with the best reported value, without algorithms whose runs all diverged."""
    chosen = {}
    for name, points in searched.items():
        values = {point: final_value(run, goal) for point, run in points.items()}
        finite = [value for value in values.values() if math.isfinite(value)]
        if finite:
            best = goal.best(finite)
            chosen[name] = next(point for point, value in values.items() if value == best)
    return chosen


def grid_table(searched: Mapping[str, Mapping[Values, Run]], chosen: Mapping[str, Values], goal: Goal) -> str:
    """Return a table of all grid points, their reported values and numbers of warnings, the chosen points marked."""
    lines = [f"| algorithm | values | {goal.heading(goal.metric)} | warnings | |", "| --- | --- | ---: | ---: | --- |"]
    for name, points in searched.items():
        for point, run in points.items():
            value = final_value(run, goal)
            shown = f"{value:.4g}" if math.isfinite(value) else "diverged"
            mark = "chosen" if chosen.get(name) == point else ""
            lines.append(f"| {name} | {label(point)} | {shown} | {len(run.warnings)} | {mark} |")
    return "\n".join(lines)


def _short(value: str) -> str:
    key, _, number = value.partition("=")
    return f"{key.rpartition('.')[2]}={number}"
