"""What a channel costs: rounds of the standard job without one, and with every kind of part, in turn.

FedAvg, 100 clients with 600 random images each, one local epoch of batch 10 a round. Each channel is trained anew for
some rounds, one after the other, and all of them again; printed are the medians of a round's seconds and of its
processor time, and how much longer that is than without a channel. One thread, so that processor time tells.
``python benchmarks/channels.py --help`` lists the choices.
"""

from __future__ import annotations

import argparse
import time
import warnings
from statistics import median

import torch

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
from lightning.pytorch import Callback, Trainer

from fedlightning.algorithms import FedAvg
from fedlightning.channel import Channel, Clip, ErrorFeedback, GaussianNoise, Median, QSGD, TopK
from fedlightning.oracle import Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import Classification
from standard_job import LR, MODELS, Images

CHANNELS = {
    "none": None,
    "an empty one": Channel(),
    "clip": Channel(client=[Clip(1.0)]),
    "clip, noise": Channel(client=[Clip(1.0)], server=[GaussianNoise(1.0)]),
    "median": Channel(aggregate=Median()),
    "TopK 1 %, error feedback": Channel(client=[ErrorFeedback(TopK(0.01))]),
    "TopK 1 %, clip, noise; broadcasts by QSGD": Channel(
        client=[TopK(0.01), Clip(1.0)], server=[GaussianNoise(1.0)], download=[QSGD(16)]
    ),
}


class Clock(Callback):
    """Takes the time of every round."""

    def __init__(self):
        self.wall, self.cpu = [], []

    def on_train_batch_start(self, *_):
        self.since = time.perf_counter(), time.process_time()

    def on_train_batch_end(self, *_):
        self.wall.append(time.perf_counter() - self.since[0])
        self.cpu.append(time.process_time() - self.since[1])


def rounds_of(model, channel, cohort, rounds, warmup):
    torch.manual_seed(0)
    data = Images(batch_size=10, local_epochs=1, participation=Uniform(cohort), rounds_per_epoch=1000)
    clock = Clock()
    Trainer(
        accelerator="cpu",
        max_steps=warmup + rounds,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[clock],
    ).fit(Classification(FedAvg(LR), MODELS[model](), oracle=Vectorized(), channel=channel), data)
    return clock.wall[warmup:], clock.cpu[warmup:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=["logreg", "lenet"])
    parser.add_argument("--cohort", type=int, default=10, help="clients a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| model | channel | s a round | CPU s a round | more than without, % |")
    print("| --- | --- | ---: | ---: | ---: |")
    for model in args.models:
        taken = {name: ([], []) for name in CHANNELS}
        for _ in range(args.repeats):
            for name, channel in CHANNELS.items():
                for all_, some in zip(
                    taken[name], rounds_of(model, channel, args.cohort, args.rounds, args.warmup), strict=True
                ):
                    all_ += some
        plain = median(taken["none"][1])
        for name, (wall, cpu) in taken.items():
            more = 100 * (median(cpu) / plain - 1)
            print(f"| {model} | {name} | {median(wall):.4f} | {median(cpu):.4f} | {more:.1f} |", flush=True)


if __name__ == "__main__":
    main()
