"""What does every algorithm reach with its config? Each folder of configs/ is one comparison over three seeds.

It writes docs/reached.csv, from which the site shows the figures on the page of each algorithm. ``python
benchmarks/reached.py`` runs all folders, names of folders run those. Adversarial images (gan) have no metric that needs
no further network, and are left out; so are personal models of differing shape, which have data of their own.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "docs" / "reached.csv"
METRICS = {
    "auc": "val_auc",
    "bilinear": "gap",
    "classification": "val_accuracy",
    "domain_adaptation": "val_target_accuracy",
    "personalized": "val_accuracy",
    "quadratic_saddle": "distance",
    "robust": "val_robust_loss",
    "synthetic": "global_train_loss",
    "universal_perturbation": "val_loss",
}
LEFT_OUT = {"base", "fed_alt_sizes"}
COLUMNS = ("task", "config", "rounds", "metric", "value")


def compare(task, seeds):
    """The last value of the metric by config, one for each seed, and the number of rounds."""
    folder = ROOT / "configs" / task
    configs = sorted(path.stem for path in folder.glob("*.yaml") if path.stem not in LEFT_OUT)
    output = ROOT / "runs" / "reached" / task
    command = [sys.executable, "-m", "fedlightning", "compare", "--base", f"{folder}/base.yaml"]
    command += ["--algorithms", *(f"{config}={folder}/{config}.yaml" for config in configs)]
    command += ["--metric", METRICS[task], "--seeds", *map(str, seeds), "--output", str(output)]
    subprocess.run(command, check=True)
    last = {}
    with (output / "results.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            last[row["algorithm"], row["seed"]] = row
    for config in configs:
        rows = [row for (name, _), row in last.items() if name == config]
        values = [float(row[METRICS[task]]) for row in rows]
        yield config, int(float(rows[0]["round"])), values


def shown(values):
    """Mean and deviation over the seeds, as the site prints them."""
    mean, deviation = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{mean:.2g} ± {deviation:.1g}" if 0 < abs(mean) < 0.01 else f"{mean:.3f} ± {deviation:.3f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", default=sorted(METRICS), metavar="folder")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    chosen = parser.parse_args()
    rows = []
    if OUTPUT.exists():
        with OUTPUT.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["task"] not in chosen.tasks]
    for task in chosen.tasks:
        for config, rounds, values in compare(task, chosen.seeds):
            rows.append(dict(zip(COLUMNS, (task, config, rounds, METRICS[task], shown(values)), strict=True)))
    rows.sort(key=lambda row: (row["task"], row["config"]))
    with OUTPUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
