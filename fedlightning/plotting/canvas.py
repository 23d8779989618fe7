"""Empty figures to draw into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedlightning.core.requirements import imported

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def empty_figure(width: float, height: float) -> Figure:
    """Return an empty figure, which needs no display.

    Args:
        width: In inches.
        height: In inches.

    Raises:
        ModuleNotFoundError: If matplotlib is not installed.
    """
    figure: Figure = imported("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    return figure
