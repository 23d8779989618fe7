"""FedAvg of pfl-research in one process; its callback after an iteration is where it waits."""

from __future__ import annotations

import os
import sys

os.environ["PFL_PYTORCH_DEVICE"] = "cpu"

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn import functional as F

from jobs import Work
from torch_networks import NETWORKS, accuracy
from turns import Turns

ROUNDS = 10**6


class Objective(torch.nn.Module):
    """A network with the two methods that pfl asks for."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def loss(self, x, y):
        return F.cross_entropy(self.network(x), y)

    def metrics(self, x, y):
        return {"loss": Weighted(self.loss(x, y).item() * len(y), len(y))}


class InTurn(TrainingProcessCallback):
    """Waits before every iteration."""

    def __init__(self, turns):
        self.turns = turns

    def on_train_begin(self, *, model):
        self.turns.wait()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.turns.wait()
        return False, Metrics()


def main():
    work = Work(sys.argv[1])
    job, x, y = work.job, torch.from_numpy(work.x), torch.from_numpy(work.y)
    users = [(x[rows], y[rows]) for rows in map(work.rows, range(job.clients))]
    data = FederatedDataset.from_slices(users, get_user_sampler("random", range(job.clients)))
    module = Objective(NETWORKS[job.network]())
    turns = Turns(lambda: accuracy(module.network, work), "pfl", "torch")
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=ROUNDS,
            evaluation_frequency=ROUNDS,
            train_cohort_size=job.cohort,
            val_cohort_size=None,
        ),
        backend=SimulatedBackend(training_data=data, val_data=None, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_learning_rate=job.lr, local_num_epochs=1, local_batch_size=job.batch
        ),
        callbacks=[InTurn(turns)],
    )


if __name__ == "__main__":
    main()
