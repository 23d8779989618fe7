"""Draws docs/figures/conformance.png from docs/figures/conformance.csv, which ``run.py --output`` wrote.

A cell is green where the paper's point is reached, red where it is not, grey where the method is not offered.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap

FIGURES = Path(__file__).parent.parent.parent / "docs" / "figures"
NOT_OFFERED, OFF, REACHED = range(3)
COLORS = ListedColormap(["#e4e4e4", "#e08b6d", "#8dbf8b"])


def kind(cell):
    """Which colour a cell has."""
    if cell == "-":
        return NOT_OFFERED
    return OFF if cell.startswith("**") else REACHED


def main():
    rows = list(csv.DictReader((FIGURES / "conformance.csv").read_text().splitlines()))
    frameworks, jobs = (list(dict.fromkeys(row[name] for row in rows)) for name in ("framework", "job"))
    cells = {(row["framework"], row["job"]): row["cell"] for row in rows}
    figure, panel = plt.subplots(figsize=(9.6, 0.42 * len(frameworks) + 1.2), layout="constrained")
    panel.pcolormesh(
        [[kind(cells[framework, job]) for job in jobs] for framework in frameworks],
        cmap=COLORS, vmin=NOT_OFFERED, vmax=REACHED, edgecolors="white", linewidth=2,
    )  # fmt: skip
    for line, framework in enumerate(frameworks):
        for column, job in enumerate(jobs):
            panel.text(column + 0.5, line + 0.5, cells[framework, job].strip("*"), ha="center", va="center", fontsize=8)
    panel.set_xticks([each + 0.5 for each in range(len(jobs))], [job.replace(", ", ",\n") for job in jobs], fontsize=8)
    panel.set_yticks([each + 0.5 for each in range(len(frameworks))], frameworks, fontsize=8)
    panel.tick_params(length=0, labeltop=True, labelbottom=False)
    panel.invert_yaxis()
    panel.spines[:].set_visible(False)
    figure.savefig(FIGURES / "conformance.png", dpi=110)


if __name__ == "__main__":
    main()
