"""What fedlightning takes beside the computing: short rounds of tiny problems, where little else is done.

A round of FedAvg, 8 clients with a model of 10 numbers, 5 steps of batch 4; a replayed step of it beside the same step
written by hand for all clients at once; a round of FIAELT on the configuration's Synthetic(1, 1), 30 clients of unequal
size; and the import of the package beside Lightning's own. CPU time, medians, one thread. With ``--before FOLDER`` the
package of another checkout is measured as well, in turn with this one.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from statistics import median

import torch
from torch import nn

from fedlightning import FederatedDataModule, FederatedLightningModule
from lightning.pytorch import Callback, Trainer

from fedlightning.algorithms import FIAELT, FedAvg
from fedlightning.data import Federation, Partition, Synthetic, TensorData
from fedlightning.local import SVRG
from fedlightning.models import MLP
from fedlightning.oracle import Vectorized
from fedlightning.tasks import Classification

CLIENTS, FEATURES, BATCH = 8, 9, 4
SHORT, LONG = 20, 220
FEWEST = 64
HERE = Path(__file__).resolve().parents[1]

IMPORT = """
import json, time
import fedlightning
start = time.process_time()
import lightning.pytorch
theirs = time.process_time()
from fedlightning import FederatedLightningModule
print(json.dumps((time.process_time() - start) / (theirs - start)))
"""


class Line(FederatedLightningModule):
    """A model of ten numbers."""

    def __init__(self, algorithm, **federation):
        super().__init__(algorithm, **federation)
        self.line = nn.Linear(FEATURES, 1)

    def objective(self, batch):
        x, y = batch
        return (self.line(x).squeeze(1) - y).square().mean()


class Numbers(FederatedDataModule):
    """Random numbers, 32 samples a client."""

    def build(self):
        draw = torch.Generator().manual_seed(0)
        x, y = torch.randn(CLIENTS * 32, FEATURES, generator=draw), torch.randn(CLIENTS * 32, generator=draw)
        return Federation(TensorData((x, y)), Partition(torch.arange(len(x)), torch.arange(0, len(x) + 1, 32)))


class Clock(Callback):
    """CPU seconds from the end of a round to the end of the next, with all that Lightning does between them."""

    def __init__(self):
        self.ends = []

    def on_train_batch_end(self, *args):
        self.ends.append(time.process_time())

    @property
    def milliseconds(self):
        return 1e3 * median(b - a for a, b in zip(self.ends[5:], self.ends[6:], strict=False))


def a_round(task, data, rounds):
    """Milliseconds of a round."""
    clock = Clock()
    Trainer(
        accelerator="cpu",
        max_steps=rounds,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    ).fit(task, data)
    return clock.milliseconds


def tiny(steps, rounds):
    data = Numbers(batch_size=BATCH, local_steps=steps, rounds_per_epoch=rounds)
    return a_round(Line(FedAvg(0.05), oracle=Vectorized()), data, rounds)


def fiaelt(rounds):
    solver = SVRG(lr=0.05, inner_steps=20, epochs=5)
    task = Classification(FIAELT(beta=1.0, solver=solver), MLP([60, 32, 10]), oracle=Vectorized())
    return a_round(task, Synthetic(alpha=1.0, beta=1.0, batch_size=10, local_steps=20), rounds)


def by_hand(steps=2000):
    """Milliseconds of a step of all clients, written with a batched product."""
    x, y = torch.randn(CLIENTS, BATCH, FEATURES), torch.randn(CLIENTS, BATCH)
    z = torch.zeros(CLIENTS, FEATURES + 1)
    taken = []
    for _ in range(steps):
        start = time.process_time()
        z.requires_grad_()
        found = torch.baddbmm(z[:, None, FEATURES:], x, z[:, :FEATURES, None]).squeeze(2)
        (g,) = torch.autograd.grad((found - y).square().mean(1).sum(), z)
        z = z.detach().sub_(g, alpha=0.05)
        taken.append(time.process_time() - start)
    return 1e3 * median(taken)


def import_ratio(times):
    command = [sys.executable, "-c", IMPORT]
    found = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(times)]
    return median(map(json.loads, found))


def measured(rounds):
    """What this process finds, by what it is."""
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    return {
        "a round of 5 steps, ms": tiny(5, rounds),
        "a replayed step, ms": (tiny(LONG, rounds // 4) - tiny(SHORT, rounds // 4)) / (LONG - SHORT),
        "a round of FIAELT, ms": fiaelt(rounds // 8),
        "import, ratio to Lightning's": import_ratio(7),
        "a step by hand, ms": by_hand(),
    }


def of_package(folder, rounds):
    """What a process finds that imports the package of a checkout."""
    command = [sys.executable, str(Path(__file__).resolve()), "--rounds", str(rounds), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(folder.resolve())}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    if done.returncode:
        sys.exit(f"with the package of {folder}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200, help=f"of the short rounds, {FEWEST} or more")
    parser.add_argument("--before", type=Path, help="folder of a checkout, whose package is measured in turn")
    parser.add_argument("--turns", type=int, default=3, help="with --before")
    parser.add_argument("--json", action="store_true", help="print numbers alone")
    args = parser.parse_args()
    if args.rounds < FEWEST:
        parser.error(f"--rounds {args.rounds}: medians need {FEWEST} or more")
    if args.json:
        print(json.dumps(measured(args.rounds)))
        return
    print(f"torch {torch.__version__}, one thread, load {os.getloadavg()[0]:.2f}")
    if args.before is None:
        print("| | now |", "| --- | ---: |", sep="\n")
        for name, value in measured(args.rounds).items():
            print(f"| {name} | {value:.3g} |")
        return
    turns = [[of_package(folder, args.rounds) for folder in (args.before, HERE)] for _ in range(args.turns)]
    print("| | before | now | ratio |", "| --- | ---: | ---: | ---: |", sep="\n")
    for name in turns[0][0]:
        states = [[turn[state][name] for turn in turns] for state in (0, 1)]
        cells = [", ".join(f"{value:.3g}" for value in state) for state in states]
        print(f"| {name} | {cells[0]} | {cells[1]} | {median(states[1]) / median(states[0]):.2f} |")


if __name__ == "__main__":
    main()
