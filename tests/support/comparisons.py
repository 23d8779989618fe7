"""Arguments of short comparisons, and the tables they write."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from tests.support.paths import CONFIGS

SADDLE = CONFIGS / "quadratic_saddle"
SMALL = [
    "trainer.max_steps=6",
    "trainer.val_check_interval=2",
    "trainer.check_val_every_n_epoch=null",
    "data.init_args.local_steps=5",
]
WILD = "1e60"
"""A step size that ends every run in its first rounds."""

FEW = "responses: {class_path: fedlightning.participation.ResponseShare, init_args: {low: 0.6, high: 0.6}}"
TOO_FEW = (
    "data.participation={class_path: fedlightning.participation.FirstResponders, "
    f"init_args: {{size: 8, at_least: 6, retries: 0, {FEW}}}}}"
)
"""A share of 60 % of eight clients are five, where six are needed: every round is skipped."""


def table(folder):
    with (Path(folder) / "results.csv").open() as file:
        return list(csv.DictReader(file))


def arguments(**changes):
    return {
        "base": [str(SADDLE / "base.yaml")],
        "algorithms": [f"FedMM={SADDLE / 'fed_mm.yaml'}", f"FedAvg={SADDLE / 'fed_avg.yaml'}"],
        "metric": "distance",
        "mode": "min",
        "output": "out",
        "set": SMALL,
        **changes,
    }


def command_line(jobs, output, seeds=("0", "1", "2")):
    return [
        sys.executable, "-m", "fedlightning", "compare", "--base", str(SADDLE / "base.yaml"),
        "--algorithms", f"A={SADDLE / 'fed_mm.yaml'}", "--metric=distance", "--mode=min", "--seeds", *seeds,
        f"--output={output}", f"--jobs={jobs}",
        "--set", "trainer.max_steps=12", *SMALL[1:], "trainer.callbacks=slow_rounds.Slow",
    ]  # fmt: skip
