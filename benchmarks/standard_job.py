"""The standard job of federated learning frameworks, fedlightning against a plain PyTorch client loop.

60,000 images of 28 x 28 pixels, 100 clients IID with 600 each, one local epoch of batch 10 (60 SGD steps, lr 0.05) a
round, for 10 or 100 clients a round; logistic regression, LeNet5, and the 1.66 M-parameter CNN of McMahan et al.

Both run in one process, a round of the one after a round of the other, so that whatever else the machine does meets
both. Our time is that of the whole Trainer: dealing data, logging, the progress bar. Peak memory is taken in a process
of its own for each. ``python benchmarks/standard_job.py --help`` lists the choices.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median

import torch

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch.nn import functional as F

from fedlightning.algorithms import FedAvg
from fedlightning.callbacks import RoundProgressBar
from fedlightning.data import IID, FederatedDataModule, Federation, TensorData
from fedlightning.models import CNN, LeNet5, LogisticRegression
from fedlightning.oracle import Auto, Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import Classification

CLIENTS, PER_CLIENT, BATCH, LR = 100, 600, 10, 0.05
MODELS = {"logreg": LogisticRegression, "lenet": LeNet5, "cnn": CNN}
ORACLES = {"auto": Auto, "vectorized": Vectorized, "sequential": Sequential}


class Images(FederatedDataModule):
    """Random images of the standard job."""

    def build(self) -> Federation:
        draw = torch.Generator().manual_seed(0)
        count = CLIENTS * PER_CLIENT
        x = torch.randn(count, 1, 28, 28, generator=draw)
        y = torch.randint(0, 10, (count,), generator=draw)
        return Federation(TensorData((x, y)), IID(CLIENTS).split(y, seed=0))


class PlainLoop:
    """FedAvg as anyone would write it: one model, one optimizer, client after client."""

    def __init__(self, model, data, cohort):
        self.model, self.cohort = model, cohort
        self.x, self.y = data.federation.train.tensors
        self.partition = data.federation.partition
        self.params = list(model.parameters())
        self.server = [p.detach().clone() for p in self.params]

    def __call__(self):
        total = [torch.zeros_like(value) for value in self.server]
        for client in torch.randperm(CLIENTS)[: self.cohort].tolist():
            with torch.no_grad():
                for p, value in zip(self.params, self.server, strict=True):
                    p.copy_(value)
            optimizer = torch.optim.SGD(self.params, lr=LR)
            for index in self.partition[client][torch.randperm(PER_CLIENT)].split(BATCH):
                loss = F.cross_entropy(self.model(self.x[index]), self.y[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            for sum_, p in zip(total, self.params, strict=True):
                sum_.add_(p.detach(), alpha=1 / self.cohort)
        for value, sum_ in zip(self.server, total, strict=True):
            value.copy_(sum_)


class Alternate(Callback):
    """After every round of ours, one of theirs."""

    def __init__(self, loop):
        self.loop = loop
        self.ours, self.theirs = [], []

    def on_train_start(self, trainer, pl_module):
        self.since = now()

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        start = now()
        self.ours.append(start - self.since)
        if self.loop is not None:
            self.loop()
        self.since = now()
        self.theirs.append(self.since - start)


def now():
    """Seconds, once a GPU has done all that it was asked for."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def make_oracle(args):
    if args.compile:
        return Vectorized(compile=True, chunk_size=min(args.cohort, 100))
    return ORACLES[args.oracle]()


def run(args, loop_too=True):
    """Times of our rounds and of the loop's, without the warm-up, and the oracle that ran."""
    torch.manual_seed(0)
    data = Images(batch_size=BATCH, local_epochs=1, participation=Uniform(args.cohort), rounds_per_epoch=100)
    task = Classification(FedAvg(LR), MODELS[args.model](), oracle=make_oracle(args))
    loop = PlainLoop(MODELS[args.model](), data, args.cohort) if loop_too else None
    turns = Alternate(loop)
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            accelerator="cpu",
            max_steps=args.warmup + args.rounds,
            logger=TensorBoardLogger(folder, default_hp_metric=False),
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[turns, RoundProgressBar()],
            default_root_dir=folder,
        ).fit(task, data)
    return turns.ours[args.warmup :], turns.theirs[args.warmup :], task.run.simulation.runner.oracle_selection.oracle


def peak_memory(args, who):
    """Peak resident memory in MiB of a process that runs ``who`` alone."""
    command = [sys.executable, __file__, "--memory-of", who, "--models", args.model, "--cohorts", str(args.cohort)]
    command += ["--oracle", args.oracle, "--threads", str(args.threads), *(["--compile"] if args.compile else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])["peak_mib"]


def peak_resident():
    """In MiB. Linux counts the parent's memory into ``ru_maxrss`` of a child; the kernel's other figure does not."""
    status = Path("/proc/self/status")
    if status.is_file():
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def at_least(least):
    """Return a type of arguments: whole numbers from the least on."""

    def number(text):
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"expected {least} or more, not {text}")
        return int(text)

    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--cohorts", nargs="+", type=at_least(1), default=[10, 100], help="clients a round")
    parser.add_argument("--oracle", choices=list(ORACLES), default="auto")
    parser.add_argument("--compile", action="store_true", help="Vectorized(compile=True)")
    parser.add_argument("--threads", type=at_least(0), default=0, help="0 leaves torch's default")
    parser.add_argument("--rounds", type=at_least(0), default=0, help="measured rounds; 0: as many as take about 20 s")
    parser.add_argument("--warmup", type=at_least(0), default=2, help="rounds before those, 2 unless given")
    parser.add_argument("--no-memory", action="store_true", help="skip the memory measurement")
    parser.add_argument("--memory-of", choices=["ours", "loop"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    if args.memory_of:
        args.model, args.cohort, args.rounds, args.warmup = args.models[0], args.cohorts[0], 2, 1
        if args.memory_of == "ours":
            run(args, loop_too=False)
        else:
            loop = PlainLoop(MODELS[args.model](), Images(), args.cohort)
            loop()
        print(json.dumps({"peak_mib": peak_resident()}))
        return
    processor = platform.processor() or platform.machine()
    load = os.getloadavg()[0]
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {processor}, load {load:.2f}")
    print("| model | clients a round | oracle | ours s | loop s | times faster | peak MiB, ours / loop |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: |")
    fixed = args.rounds
    for model in args.models:
        for cohort in args.cohorts:
            args.model, args.cohort = model, cohort
            budget = {"logreg": 0.02, "lenet": 0.2, "cnn": 2.0}[model] * cohort
            args.rounds = fixed or max(3, min(60, round(20 / budget)))
            ours, theirs, oracle = run(args)
            memory = "" if args.no_memory else " / ".join(f"{peak_memory(args, who):.0f}" for who in ("ours", "loop"))
            print(
                f"| {model} | {cohort} | {oracle} | {median(ours):.4f} | {median(theirs):.4f} "
                f"| {median(theirs) / median(ours):.2f} | {memory} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
