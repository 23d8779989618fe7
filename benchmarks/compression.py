"""Accuracy against the bytes that clients send, for three algorithms and several compressors.

``python benchmarks/compression.py`` takes scikit-learn's digits; ``--data mnist`` takes MNIST from the folder
FEDLIGHTNING_DATA, with 1,000 clients of whom 100 answer in a round. The script prints a table with the bytes to the
target, and writes docs/figures/compression.png. Every curve is the mean over the seeds.
"""

from __future__ import annotations

import argparse
import os
import warnings
from functools import partial
from pathlib import Path
from statistics import mean

import matplotlib.pyplot as plt
import torch

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
import lightning

from fedlightning.algorithms import SCAFFOLD, FedAvg, FedMM
from fedlightning.callbacks import History
from fedlightning.channel import QSGD, Channel, ErrorFeedback, NaturalCompression, RandK, SignCompression, TopK
from fedlightning.data import MNIST, Digits, Dirichlet
from fedlightning.models import CNN, LeNet5, LogisticRegression
from fedlightning.participation import Uniform
from fedlightning.tasks import Classification

FIGURE = Path(__file__).parent.parent / "docs" / "figures" / "compression.png"
NETWORKS = {"logreg": LogisticRegression, "lenet": LeNet5, "cnn": CNN}
COMPRESSORS = {
    "none": [],
    "natural": [NaturalCompression()],
    "QSGD, 4 levels, buckets of 64": [QSGD(4, bucket_size=64)],
    "sign": [SignCompression()],
    "sign, EF21": [ErrorFeedback(SignCompression())],
    "TopK 2 %": [TopK(0.02)],
    "TopK 2 %, EF21": [ErrorFeedback(TopK(0.02))],
    "RandK 10 %": [RandK(0.1)],
    "RandK 10 %, EF21": [ErrorFeedback(RandK(0.1))],
}


ALGORITHMS = {"FedAvg": FedAvg, "SCAFFOLD": SCAFFOLD, "FedMM": partial(FedMM, mu=0.1, mean_over="all")}
COLORS = dict(
    zip(
        [name for name in COMPRESSORS if "EF21" not in name],
        ["black", "tab:orange", "tab:brown", "tab:green", "tab:red", "tab:purple"],
        strict=True,
    )
)
"""The same with error feedback as without, which is dotted."""


def data_of(args, seed):
    options = {
        "partitioner": Dirichlet(num_clients=args.clients, alpha=args.alpha, min_size=5),
        "participation": Uniform(args.cohort),
        "batch_size": 10,
        "local_epochs": 1,
        "rounds_per_epoch": args.every,
        "seed": seed,
    }
    if args.data == "digits":
        return Digits(**options)
    return MNIST(str(Path(os.environ["FEDLIGHTNING_DATA"]) / "mnist"), **options)


def network_of(args):
    if args.network == "logreg":
        return LogisticRegression(in_features=784 if args.data == "mnist" else 64)
    return NETWORKS[args.network]()


def fit(args, algorithm, transforms, seed):
    """The rows of a run: bytes sent so far and accuracy at every validation."""
    torch.manual_seed(seed)
    channel = Channel(client=transforms) if transforms else None
    history = History()
    trainer = lightning.Trainer(
        max_steps=args.rounds,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        accelerator=args.accelerator,
        callbacks=[history],
    )
    trainer.fit(Classification(algorithm, network=network_of(args), channel=channel), data_of(args, seed))
    return history.rows


def megabytes_to(target, rows):
    """Bytes when the accuracy is first as good as the target, in units of a million; None if it never is."""
    return next((row["upload_bytes"] / 1e6 for row in rows if row["val_accuracy"] >= target), None)


def line(name, compressor, runs, plain, target):
    """A line of the table: bits a number, accuracy, megabytes to the target, and how much less that is."""
    last = [rows[-1] for rows in runs]
    width = mean(8 * row["upload_bytes"] / row["upload"] for row in last)
    accuracy = 100 * mean(row["val_accuracy"] for row in last)
    costs, without = ([megabytes_to(target, rows) for rows in some] for some in (runs, plain))
    cells = ["not reached", ""] if None in costs else [f"{mean(costs):.3g}", ""]
    if None not in costs and None not in without:
        cells[1] = f"{mean(without) / mean(costs):.1f}"
    return f"| {name} | {compressor} | {width:.2f} | {accuracy:.1f} | {cells[0]} | {cells[1]} |"


def draw(found, args):
    figure, row = plt.subplots(
        1, len(found), squeeze=False, figsize=(4.4 * len(found), 4.2), sharey=True, layout="constrained"
    )
    panels = row[0]
    for panel, (name, curves) in zip(panels, found.items(), strict=True):
        for compressor, runs in curves.items():
            x, y = (
                torch.tensor([[row[each] for row in rows] for rows in runs]).mean(0)
                for each in ("upload_bytes", "val_accuracy")
            )
            style = "-" if compressor.endswith("EF21") or f"{compressor}, EF21" not in COMPRESSORS else ":"
            panel.plot(x, 100 * y, label=compressor, color=COLORS[compressor.removesuffix(", EF21")], linestyle=style)
        panel.set(xscale="log", xlabel="bytes uploaded", title=name)
        panel.axhline(100 * args.target, color="grey", linewidth=0.8, linestyle=":")
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="test accuracy, %", ylim=(40, 100))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize="small")
    figure.savefig(args.out, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--network", choices=list(NETWORKS), default="logreg")
    parser.add_argument("--clients", type=int, help="20 for digits, 1,000 for MNIST")
    parser.add_argument("--cohort", type=int, help="10 for digits, 100 for MNIST")
    parser.add_argument("--alpha", type=float, default=0.3, help="of the Dirichlet distribution of labels")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--every", type=int, default=5, help="rounds from one validation to the next")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--target", type=float, default=0.9)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--algorithms", nargs="+", choices=list(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--compressors", nargs="+", choices=list(COMPRESSORS), default=list(COMPRESSORS))
    parser.add_argument("--accelerator", default="cpu")
    parser.add_argument("--out", type=Path, default=FIGURE)
    args = parser.parse_args()
    small = args.data == "digits"
    args.clients = args.clients or (20 if small else 1000)
    args.cohort = args.cohort or (10 if small else 100)
    warnings.simplefilter("ignore")
    print(f"| algorithm | compressor | bits a number | accuracy, % | MB to {args.target:.0%} | times less |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    found = {}
    for name in args.algorithms:
        curves = found[name] = {}
        for compressor in args.compressors:
            curves[compressor] = [
                fit(args, ALGORITHMS[name](args.lr), COMPRESSORS[compressor], seed) for seed in args.seeds
            ]
            print(line(name, compressor, curves[compressor], curves[args.compressors[0]], args.target), flush=True)
    draw(found, args)


if __name__ == "__main__":
    main()
