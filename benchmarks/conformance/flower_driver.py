"""Flower: its server, strategies and NumPyClient in one process, with proxies that hand messages over.

FedProx's proximal term is the client's business in Flower; the client here adds it as the strategy's page says, with
the weight that the strategy sends, and squares the norm, as the formula on that page does.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server import Server
from flwr.server.strategy import FedAvg, FedProx
from torch.nn import functional as F

from flower_proxy import point
from problem import DIMENSION, LR, MU
from torch_objective import Linear, tensors, weights
from turn import answer

METHODS = ("FedAvg", "FedProx")


class Client(NumPyClient):
    """A client as Flower's tutorials write it."""

    def __init__(self, samples, epochs):
        self.samples, self.epochs = samples, epochs

    def fit(self, parameters, config):
        received = torch.from_numpy(parameters[0])
        model = Linear()
        model.weight.data.copy_(received)
        optimizer = torch.optim.SGD(model.parameters(), LR)
        for _ in range(self.epochs):
            for x, y in zip(*self.samples, strict=True):
                optimizer.zero_grad()
                proximal = (model.weight - received).norm(2) ** 2
                loss = F.mse_loss(model(x[None]), y[None]) + config.get("proximal_mu", 0.0) / 2 * proximal
                loss.backward()
                optimizer.step()
        return [weights(model)], len(self.samples[1]), {}


def run(problem, job):
    start = {"initial_parameters": ndarrays_to_parameters([np.zeros(DIMENSION)])}
    strategy = partial(FedProx, proximal_mu=MU, **start) if job.method == "FedProx" else partial(FedAvg, **start)
    clients = [Client(samples, job.epochs).to_client for samples in tensors(problem, job)]
    return point(Server, strategy, clients, job)


if __name__ == "__main__":
    answer(run, METHODS, "flwr", "torch")
