"""Flower: its server, strategies and NumPyClient in one process, with proxies that hand messages over.

FedProx's proximal term is the client's business in Flower; the client here adds it as the strategy's page says, with
the weight that the strategy sends, and squares the norm, as the formula on that page does.
"""

from __future__ import annotations

import numpy as np
import torch
from flwr.client import NumPyClient
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import Server, SimpleClientManager
from flwr.server.strategy import FedAvg, FedProx
from torch.nn import functional as F

from flower_proxy import InProcess
from problem import CLIENTS, DIMENSION, LR, MU, ROUNDS
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
    clients = SimpleClientManager()
    for number, samples in enumerate(tensors(problem, job)):
        clients.register(InProcess(str(number), Client(samples, job.epochs).to_client))
    given = {
        "fraction_fit": job.cohort / CLIENTS,
        "fraction_evaluate": 0.0,
        "min_available_clients": CLIENTS,
        "initial_parameters": ndarrays_to_parameters([np.zeros(DIMENSION)]),
        "accept_failures": False,
    }
    strategy = FedProx(**given, proximal_mu=MU) if job.method == "FedProx" else FedAvg(**given)
    server = Server(client_manager=clients, strategy=strategy)
    server.set_max_workers(1)
    server.fit(ROUNDS, timeout=None)
    return parameters_to_ndarrays(server.parameters)[0]


if __name__ == "__main__":
    answer(run, METHODS, "flwr", "torch")
