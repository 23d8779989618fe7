"""What it costs that every client draws its own random numbers, on networks with dropout.

A replayed gradient of a cohort with each client's own generator, beside the same with one generator for all, in turn;
the first is what a fit does, the second what vmap would do by itself. Medians, one thread.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
from torch import nn
from torch.nn import functional as F

from fedlightning.oracle import Autocast, Objective, Vectorized
from fedlightning.oracle.randomness import Randomness
from fedlightning.core.parameter_space import ParameterSpace, read

NETWORKS = {
    "MLP 784-200-10, one dropout": (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Dropout(0.5), nn.Linear(200, 10)),
        (1, 28, 28),
    ),
    "LeNet-like CNN, two dropouts": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(0.25),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(400, 10),
        ),
        (1, 28, 28),
    ),
    "transformer layer, dropout 0.1": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True), nn.Flatten(), nn.Linear(512, 10)
        ),
        (16, 32),
    ),
}


class Classify(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def objective(self, batch):
        return F.cross_entropy(self.net(batch[0]), batch[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=int, default=[10, 100])
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--trials", type=int, default=40)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| network | clients | own numbers, ms | one generator, ms | ratio |\n| --- | ---: | ---: | ---: | ---: |")
    for name, (make, shape) in NETWORKS.items():
        for clients in args.clients:
            task = Classify(make())
            space = ParameterSpace(task)
            space.restrict_buffers(())
            objective = Objective(task, space, Autocast("cpu"))
            w = read(space.shared, task).expand(clients, -1).clone()
            v = b = w.new_empty(clients, 0)
            data = torch.randn(clients, args.batch, *shape), torch.randint(0, 10, (clients, args.batch))
            ways = [Vectorized(replay=True).evaluator(objective, 100) for _ in range(2)]
            times = [[], []]
            for trial in range(args.trials + 2):
                for way, evaluate in enumerate(ways):
                    randomness = Randomness(range(clients), trial) if way == 0 else None
                    start = time.perf_counter()
                    evaluate(w, v, b, data, "both", randomness)
                    times[way].append(time.perf_counter() - start)
            own, shared = (median(each[2:]) * 1e3 for each in times)
            print(f"| {name} | {clients} | {own:.2f} | {shared:.2f} | {own / shared:.2f} |", flush=True)


if __name__ == "__main__":
    main()
