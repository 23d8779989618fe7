"""What one block's gradient costs beside both: FedAlt and FedAPM move the personal block alone, then the shared one.

One client's minibatch on one thread, the three ways in turn; the time is the median over the repeats.
"""

from __future__ import annotations

import argparse
import time
from statistics import median

import torch

import fedlightning  # noqa: F401  # before lightning, which imports torchvision
from fedlightning.algorithms import FedAlt
from fedlightning.models import HARNet, TwoLayerCNN
from fedlightning.oracle import Autocast, Objective, Sequential
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.tasks import PersonalizedClassification

SETTINGS = {
    "CNN, CIFAR-10, personal head": (lambda: TwoLayerCNN(), "network.head", (50, 3, 32, 32)),
    "CNN, CIFAR-10, personal convolutions": (lambda: TwoLayerCNN(), "network.body", (50, 3, 32, 32)),
    "HARNet, personal head": (lambda: HARNet(6), "network.head", (100, 6, 128)),
    "HARNet, personal acc.conv": (lambda: HARNet(6), "network.acc.conv", (100, 6, 128)),
}


def milliseconds(name, repeats):
    make, personal, shape = SETTINGS[name]
    network = make()
    task = PersonalizedClassification(FedAlt(0.1), network, classes=network(torch.zeros(shape)).shape[1])
    space = ParameterSpace(task, personal_parameters=[personal])
    space.restrict_buffers([])
    evaluate = Sequential().evaluator(Objective(task, space, Autocast("cpu")), 1)
    w, v = read(space.shared, task)[None], read(space.personal, task)[None]
    data = (torch.randn(1, *shape), torch.zeros(1, shape[0], dtype=torch.long))
    seconds = {"both": [], "personal": [], "shared": []}
    for _ in range(repeats + 1):
        for blocks, taken in seconds.items():
            since = time.perf_counter()
            evaluate(w, v, w.new_empty(1, 0), data, blocks)
            taken.append(time.perf_counter() - since)
    return {blocks: 1e3 * median(taken[1:]) for blocks, taken in seconds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=30)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print("| network | both, ms | personal alone, ms | shared alone, ms | personal / both | shared / both |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for name in SETTINGS:
        both, personal, shared = milliseconds(name, args.repeats).values()
        print(
            f"| {name} | {both:.1f} | {personal:.1f} | {shared:.1f} | {personal / both:.2f} | {shared / both:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
