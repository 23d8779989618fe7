"""Accuracy against seconds: LeNet5 on MNIST, 100 clients, 10 a round, every framework in turn.

``FEDLIGHTNING_DATA=... python benchmarks/peers/figure.py`` writes docs/figures/time_to_accuracy.png. Seconds are those
of the rounds from the first on, with what a framework compiles or measures in it; evaluation stands outside the clock.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack, closing
from itertools import accumulate
from pathlib import Path

import matplotlib.pyplot as plt

from samples import write
from driver import FRAMEWORKS, HERE, start
from jobs import JOBS

STYLES = {
    "fedlightning": {"color": "crimson", "linewidth": 2.5, "zorder": 3},
    "plain loop": {"color": "black", "linewidth": 2},
}
TARGET = 0.97


def curves(names, rounds, root):
    """Seconds and accuracies after every round, for each framework."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        workers = [stack.enter_context(closing(each)) for each in start(names, "mnist", write("mnist", folder, root))]
        accuracies = {worker.name: [worker.accuracy()] for worker in workers}
        for _ in range(rounds):
            for worker in workers:
                worker.round()
                accuracies[worker.name].append(worker.accuracy())
        return {each.name: ([0, *accumulate(each.seconds)], accuracies[each.name]) for each in workers}


def draw(found, path):
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for index, (name, (seconds, accuracy)) in enumerate(found.items()):
        style = STYLES.get(name, {"color": plt.get_cmap("Set2")(index), "linewidth": 1.4})
        axes.plot(seconds, [100 * value for value in accuracy], label=name, **style)
    axes.set(xlabel="seconds", ylabel="test accuracy, %", ylim=(80, 100), title="LeNet5 on MNIST, 10 of 100 clients")
    axes.set_xscale("log")
    axes.grid(alpha=0.3)
    figure.legend(fontsize="small", loc="outside right upper")
    figure.savefig(path, dpi=130)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frameworks", nargs="+", choices=list(FRAMEWORKS), default=list(FRAMEWORKS))
    parser.add_argument("--rounds", type=int, default=1 + JOBS["mnist"].rounds)
    parser.add_argument("--data", type=Path, default=os.environ.get("FEDLIGHTNING_DATA"), help="folder with mnist/")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "docs" / "figures" / "time_to_accuracy.png")
    args = parser.parse_args()
    if args.data is None:
        parser.error("--data or FEDLIGHTNING_DATA names the folder with mnist/.")
    found = curves(args.frameworks, args.rounds, args.data)
    draw(found, args.out)
    print(f"| framework | s to {TARGET:.0%} | s for {args.rounds} rounds | accuracy then, % |")
    print("| --- | ---: | ---: | ---: |")
    for name, (seconds, accuracy) in found.items():
        reached = next((f"{s:.1f}" for s, value in zip(seconds, accuracy, strict=True) if value >= TARGET), "-")
        print(f"| {name} | {reached} | {seconds[-1]:.1f} | {100 * accuracy[-1]:.1f} |")


if __name__ == "__main__":
    main()
