"""Evaluation of every client's own model: many clients side by side against one client after the other.

The digits over 20 and 100 clients with personal heads, accuracy, macro F1, AUC and loss of every client on its own test
data. Both ways run in one process, in turn; the time is that of the evaluation loop, the median over the repeats.
"""

from __future__ import annotations

import argparse
import logging
import time
import warnings
from statistics import median

import torch

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
from lightning.pytorch import Callback, Trainer

from fedlightning.algorithms import FedAPM
from fedlightning.data import IID, PersonalDigits
from fedlightning.models import PersonalMLP, TwoLayerCNN
from fedlightning.oracle import Vectorized
from fedlightning.tasks import PersonalizedClassification

NETWORKS = {"MLP": PersonalMLP, "CNN": lambda: TwoLayerCNN(channels=1, size=8)}


class OneByOne(PersonalizedClassification):
    """Never several clients in a batch."""

    def evaluated_together(self, stage):
        return 1


class Clock(Callback):
    def on_test_start(self, *args):
        self.since = time.perf_counter()

    def on_test_end(self, *args):
        self.seconds = time.perf_counter() - self.since


def trained(task, data):
    clock = Clock()
    trainer = Trainer(
        accelerator="cpu",
        max_steps=2,
        limit_val_batches=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    )
    trainer.fit(task, data)
    return clock, trainer


def compare(name, clients, repeats):
    data = PersonalDigits(IID(clients), batch_size=10, local_steps=2)
    runs = []
    for make in (PersonalizedClassification, OneByOne):
        torch.manual_seed(0)
        task = make(FedAPM(0.1), NETWORKS[name](), personal=["head"], oracle=Vectorized())
        runs.append((task, *trained(task, data), []))
    for _ in range(repeats + 1):
        for task, clock, trainer, seconds in runs:
            trainer.test(task, data, verbose=False)
            seconds.append(clock.seconds)
    ours, theirs = (task.client_metrics["test_accuracy"] for task, *_ in runs)
    assert torch.equal(ours, theirs)
    return [median(seconds[1:]) for *_, seconds in runs]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    print("| network | clients | side by side, ms | one by one, ms | times faster |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name in args.networks:
        for clients in args.clients:
            ours, theirs = compare(name, clients, args.repeats)
            print(f"| {name} | {clients} | {1e3 * ours:.1f} | {1e3 * theirs:.1f} | {theirs / ours:.1f} |", flush=True)


if __name__ == "__main__":
    main()
