"""The jobs' networks in PyTorch; those of the standard job are fedlightning's own."""

from __future__ import annotations

import torch
from torch import nn

from fedlightning.models import CNN, LeNet5, LogisticRegression


def pfl_cnn():
    """pfl-research's network for CIFAR-10, with 1.63 M parameters."""
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
    layers += [nn.Flatten(), nn.Linear(12544, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)]
    for layer in layers:
        if hasattr(layer, "weight"):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)


NETWORKS = {
    "logreg": LogisticRegression,
    "lenet": LeNet5,
    "cnn": CNN,
    "sigmoid": lambda: nn.Sequential(LogisticRegression(), nn.Sigmoid()),  # as FLUTE and FedML have it
    "pfl": pfl_cnn,
}


@torch.no_grad()
def accuracy(network, work):
    network.eval()
    x, y = torch.from_numpy(work.x_test), torch.from_numpy(work.y_test)
    right = sum((network(a).argmax(1) == b).sum().item() for a, b in zip(x.split(250), y.split(250), strict=True))
    network.train()
    return right / len(y)
