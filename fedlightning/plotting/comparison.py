"""Curves of several algorithms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

Histories = Sequence[Sequence[Mapping[str, float]]]
"""Rows of every seed's run."""


def comparison_figure(
    curves: Mapping[str, Histories], metric: str, axes: Sequence[str] = ("round", "upload"), target: float | None = None
) -> Figure:
    """A metric against rounds and against upload: mean over seeds, spread (one standard deviation) shaded.

    Args:
        curves: Histories of each algorithm.
        metric: What is drawn.
        axes: Columns it is drawn against, one panel each.
        target: Drawn as a line.
    """
    figure = Figure(figsize=(5.5 * len(axes), 4), layout="constrained")
    panels = figure.subplots(1, len(axes), squeeze=False)[0]
    for panel, column in zip(panels, axes, strict=True):
        for name, histories in curves.items():
            x, y = _on_common_grid(histories, column, metric)
            (line,) = panel.plot(x, y.mean(0), label=name)
            if len(y) > 1:
                low, high = y.mean(0) - y.std(0, ddof=1), y.mean(0) + y.std(0, ddof=1)
                panel.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        if target is not None:
            panel.axhline(target, color="grey", linewidth=0.8, linestyle=":")
        panel.set_xlabel({"round": "communication round", "upload": "floats uploaded"}.get(column, column))
        panel.set_ylabel(metric.replace("_", " "))
        panel.grid(alpha=0.3)
    panels[0].legend()
    return figure


def _on_common_grid(histories: Histories, column: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Values ``[seeds, points]`` at the first seed's points, the others interpolated there."""
    grid = np.array([row[column] for row in histories[0]])
    values = [
        np.interp(grid, [row[column] for row in history], [row[metric] for row in history]) for history in histories
    ]
    return grid, np.array(values)
