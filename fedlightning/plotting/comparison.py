"""Curves of several algorithms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from fedlightning.plotting.canvas import empty_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Histories = Sequence[Sequence[Mapping[str, float]]]
"""Rows of every seed's run."""


def comparison_figure(
    curves: Mapping[str, Histories],
    metrics: str | Sequence[str],
    axes: Sequence[str] = ("round", "upload"),
    target: float | None = None,
    log_scale: bool = False,
    caption: str = "",
) -> Figure:
    """Draw metrics against rounds and upload: mean over seeds, with one standard deviation shaded.

    Args:
        curves: Histories of each algorithm.
        metrics: What is drawn, a row of panels each; algorithms that do not log one are left out of its row.
        axes: Columns it is drawn against, one panel each.
        target: Drawn as a line in the first row.
        log_scale: Whether the first row's vertical axes are logarithmic.
        caption: Text below the panels, after what is drawn.
    """
    metrics = [metrics] if isinstance(metrics, str) else metrics
    figure = empty_figure(5.5 * len(axes), 4 * len(metrics))
    panels = figure.subplots(len(metrics), len(axes), squeeze=False)
    for row, metric in zip(panels, metrics, strict=True):
        for panel, column in zip(row, axes, strict=True):
            _draw(panel, curves, metric, column)
            if target is not None and metric == metrics[0]:
                panel.axhline(target, color="grey", linewidth=0.8, linestyle=":")
            if log_scale and metric == metrics[0]:
                panel.set_yscale("log")
    if curves:
        panels[0][0].legend()
    several = any(len(histories) > 1 for histories in curves.values())
    drawn = "Mean over seeds, as far as all of them go, one standard deviation shaded." if several else ""
    if text := " ".join(filter(None, (drawn, caption))):
        figure.supxlabel("\n".join(wrap(text, 100 * len(axes))), x=0.01, ha="left", fontsize="x-small")
    return figure


_LABELS = {
    "round": "communication round",
    "seconds": "seconds of training",
    "upload": "floats uploaded",
    "download": "floats downloaded",
    "upload_bytes": "bytes uploaded",
    "download_bytes": "bytes downloaded",
    "virtual_seconds": "virtual seconds",
}


def _draw(panel: Axes, curves: Mapping[str, Histories], metric: str, column: str) -> None:
    for number, (name, histories) in enumerate(curves.items()):
        drawn = [rows for history in histories if (rows := [row for row in history if metric in row])]
        if not drawn:
            continue
        x, y = _on_common_grid(drawn, column, metric)
        (line,) = panel.plot(x, y.mean(0), color=f"C{number}", label=name)
        if len(y) > 1:
            low, high = y.mean(0) - y.std(0, ddof=1), y.mean(0) + y.std(0, ddof=1)
            panel.fill_between(x, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    panel.set_xlabel(_LABELS.get(column, column))
    panel.set_ylabel(metric.replace("_", " "))
    panel.grid(alpha=0.3)


def _on_common_grid(histories: Histories, column: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return values ``[seeds, points]`` where all seeds have some, at every seed's points and at both ends.

    Between its points a seed is interpolated, and not continued beyond its last one unless no point is common to all.
    """
    known = [np.array([[row[column], row[metric]] for row in history]).T for history in histories]
    low, high = max(x[0] for x, _ in known), min(x[-1] for x, _ in known)
    every = np.concatenate([x for x, _ in known])
    grid = np.unique([*every[(every >= low) & (every <= high)], low, high])
    values = np.array([np.interp(grid, x, y) for x, y in known])
    return grid, np.where(np.isfinite(values), values, np.nan)  # gaps
