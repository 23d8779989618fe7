"""Draws docs/figures/tables.png from docs/figures/tables.csv: accuracies after 50 rounds, ours beside others'.

Of a run of ours that diverged there is no accuracy, and theirs stands alone. The numbers are those of
experiments/benchmarks/README.md.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib.pyplot as plt

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
COLORS = {"FedAvg": "#4477aa", "FedProx": "#228833", "SCAFFOLD": "#ee6677", "FedNova": "#aa8833"}


def main():
    rows = list(csv.DictReader((FIGURES / "tables.csv").read_text().splitlines()))
    splits = list(dict.fromkeys((row["data"], row["split"]) for row in rows))
    data = list(dict.fromkeys(name for name, _ in splits))
    heights = [sum(name == each for name, _ in splits) for each in data]
    figure, panels = plt.subplots(
        len(data), figsize=(8.4, 0.62 * len(splits) + 1.4), height_ratios=heights, sharex=True, layout="constrained"
    )
    for panel, name in zip(panels, data, strict=True):
        own = [split for each, split in splits if each == name]
        for row in (row for row in rows if row["data"] == name):
            methods = list(COLORS)
            place = own.index(row["split"]) + 0.2 * (methods.index(row["method"]) - 1.5)
            color, theirs = COLORS[row["method"]], float(row["theirs"])
            ours = float("nan" if row["ours"] == "diverges" else row["ours"])
            panel.plot([ours, theirs], [place, place], color=color, linewidth=1, alpha=0.6)
            panel.plot(theirs, place, "o", color=color, markerfacecolor="white", markersize=6)
            panel.plot(ours, place, "o", color=color, markersize=4)
        panel.set_yticks(range(len(own)), own)
        panel.set_ylim(len(own) - 0.5, -0.5)
        panel.set_title(name, loc="left", fontsize=10)
        panel.grid(axis="x", alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("accuracy on the test part after 50 rounds, percent")
    for method, color in COLORS.items():
        panels[0].plot([], [], "o", color=color, label=method, markersize=5)
    panels[0].plot([], [], "o", color="grey", label="ours", markersize=4)
    panels[0].plot([], [], "o", color="grey", markerfacecolor="white", label="theirs", markersize=6)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, fontsize=9, frameon=False
    )
    figure.savefig(FIGURES / "tables.png", dpi=110)


if __name__ == "__main__":
    main()
