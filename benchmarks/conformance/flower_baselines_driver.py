"""Flower's baselines niid_bench and, for FedDyn, depthfl: their clients, strategies and servers in one process.

``FLOWER_BASELINES`` names the folder ``baselines`` of a checkout of Flower's repository.

The model is a setting of the baselines; depthfl's returns a list of outputs, here of one. Their training functions make
``nn.CrossEntropyLoss()``, a name that means the mean squared error here. Clients are made by ``gen_client_fn``, for
every message anew as in Flower's simulation; what they keep is in files, in a folder of the run's own. Momentum and
weight decay are 0 in niid_bench; in depthfl the learning rate does not decay, and weight decay is no setting. Weights
are numbers of samples: to count alike, every client owns one and takes its steps as passes over it. Servers ask a
client for the first parameters, as niid_bench's do.
"""

from __future__ import annotations

import os
import random
import sys
from contextlib import chdir
from functools import partial
from tempfile import TemporaryDirectory

sys.path.extend(os.path.abspath(f"{os.environ['FLOWER_BASELINES']}/{each}") for each in ("niid_bench", "depthfl"))

import depthfl.client
from depthfl.server import ServerFedDyn
from depthfl.strategy import FedDyn
from flwr.client.app import to_client
from flwr.server import Server
from flwr.server.strategy import FedAvg
from niid_bench import client_fedavg, client_fednova, client_fedprox, client_scaffold
from niid_bench.server_fednova import FedNovaServer
from niid_bench.server_scaffold import ScaffoldServer
from niid_bench.strategy import FedNovaStrategy, ScaffoldStrategy
from omegaconf import OmegaConf
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from flower_proxy import point
from problem import ALPHA, CLIENTS, LR, MU
from torch_objective import Linear, tensors
from turn import answer

nn.CrossEntropyLoss = nn.MSELoss


class Branch(Linear):
    """The linear layer as depthfl's network of one classifier."""

    def forward(self, x):
        return [super().forward(x)]


MODEL = {"_target_": "torch_objective.Linear"}
NIID_BENCH = {"model": MODEL, "momentum": 0.0, "weight_decay": 0.0}
DEPTHFL = {"models": [{"_target_": f"{__name__}.Branch"}] * CLIENTS, "learning_rate_decay": 1.0}
FED_DYN = {"feddyn": True, "kd": False, "extended": True, "alpha": ALPHA}


def fed_dyn(**given):
    """depthfl's strategy with what its ``main.py`` makes of the configuration."""
    config = OmegaConf.create({"num_clients": CLIENTS, "fit_config": FED_DYN})
    return FedDyn(config, Branch(), on_fit_config_fn=lambda number: {**FED_DYN, "curr_round": number}, **given)


METHODS = {
    "FedAvg": (client_fedavg, NIID_BENCH, FedAvg, Server),
    "FedProx": (client_fedprox, NIID_BENCH | {"proximal_mu": MU}, FedAvg, Server),
    "SCAFFOLD": (
        client_scaffold,
        NIID_BENCH | {"client_cv_dir": "client_cvs"},
        ScaffoldStrategy,
        partial(ScaffoldServer, model=MODEL),
    ),
    "FedDyn": (depthfl.client, DEPTHFL, fed_dyn, ServerFedDyn),
    "FedNova": (client_fednova, NIID_BENCH, FedNovaStrategy, FedNovaServer),
}


def made(module, options, loaders, steps, number):
    """A client as Flower's simulation makes it."""
    make = module.gen_client_fn(trainloaders=loaders, valloaders=loaders, num_epochs=steps, learning_rate=LR, **options)
    return to_client(make(str(number)))


def run(problem, job):
    random.seed(0)
    module, options, strategy, server = METHODS[job.method]
    loaders = [DataLoader(TensorDataset(x[:1], y[:1]), batch_size=1) for x, y in tensors(problem, job)]
    clients = [partial(made, module, options, loaders, steps, number) for number, steps in enumerate(job.steps)]
    with TemporaryDirectory() as folder, chdir(folder):
        return point(server, strategy, clients, job)


if __name__ == "__main__":
    answer(run, METHODS, "flwr", "torch")
