"""Does a round, or memory, grow with the number of clients? A thousand against a million, 16 of them a round.

Every client holds one sample, of which only the number is stored: its image is made when it is gathered, so that what
could grow is fedlightning's own. Stateless FedAvg, and FedMM, whose rows appear when a client is first sampled. Each
run is a process of its own; the time is the median round, the memory the peak.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from statistics import median

import torch

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
from lightning.pytorch import Callback, Trainer

from fedlightning.algorithms import FedAvg, FedMM
from fedlightning.data import FederatedDataModule, Federation, Partition, TensorData
from fedlightning.models import LogisticRegression
from fedlightning.oracle import Vectorized
from fedlightning.participation import FirstResponders
from fedlightning.tasks import Classification
from standard_job import at_least, peak_resident

ALGORITHMS = {"FedAvg": lambda: FedAvg(0.05), "FedMM": lambda: FedMM(0.05, mu=1.0)}


class Drawn:
    """Images and labels from the numbers of samples."""

    def __call__(self, batch):
        (number,) = batch
        waves = torch.arange(784, device=number.device, dtype=torch.get_default_dtype())
        return torch.sin(number.unsqueeze(-1) * 0.37 + waves * 0.1), number % 10


class Many(FederatedDataModule):
    """One sample a client."""

    def __init__(self, clients, **options):
        super().__init__(**options)
        self.clients = clients

    def build(self):
        numbers = torch.arange(self.clients)
        return Federation(TensorData((numbers,), Drawn()), Partition(numbers, torch.arange(self.clients + 1)))


class Clock(Callback):
    def __init__(self):
        self.rounds = []

    def on_train_batch_start(self, *args):
        self.since = time.perf_counter()

    def on_train_batch_end(self, *args):
        self.rounds.append(time.perf_counter() - self.since)


def run(name, clients, rounds):
    clock = Clock()
    task = Classification(ALGORITHMS[name](), LogisticRegression(784, 10), oracle=Vectorized())
    data = Many(clients, batch_size=1, local_steps=5, participation=FirstResponders(size=16), rounds_per_epoch=rounds)
    Trainer(
        accelerator="cpu",
        max_steps=rounds,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    ).fit(task, data)
    return {"seconds": median(clock.rounds[5:]), "peak_mib": peak_resident()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=at_least(16), default=[1_000, 1_000_000])
    parser.add_argument("--rounds", type=at_least(1), default=200)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if args.one:
        print(json.dumps(run(args.one[0], int(args.one[1]), args.rounds)))
        return
    print("| algorithm | clients | ms a round | peak MiB |")
    print("| --- | ---: | ---: | ---: |")
    for name in ALGORITHMS:
        for clients in args.clients:
            command = [sys.executable, __file__, "--one", name, str(clients), "--rounds", str(args.rounds)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            print(f"| {name} | {clients:,} | {found['seconds'] * 1e3:.2f} | {found['peak_mib']:.0f} |", flush=True)


if __name__ == "__main__":
    main()
