"""Small tasks, data and trainers for tests."""

from __future__ import annotations

import os

import torch
from lightning.pytorch import Trainer
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg

ACCELERATOR = os.environ.get("FEDLIGHTNING_ACCELERATOR", "cpu")
"""Where the tasks of these tests train; on a GPU, tests of what is said or kept on a CPU may fail."""


class Line(FederatedLightningModule):
    """Regression with dropout: 6 features, one hidden layer."""

    def __init__(self, algorithm=None, dropout=0.2, **federation):
        super().__init__(FedAvg(0.05) if algorithm is None else algorithm, **federation)
        self.save_hyperparameters()
        self.body = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(5, 1)

    def objective(self, batch):
        x, y = batch
        loss = F.mse_loss(self.head(self.body(x)).squeeze(1), y)
        return {"loss": loss, "rmse": loss.sqrt()}

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.objective(batch)["loss"])

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.objective(batch)["loss"])

    def predict_step(self, batch, batch_idx):
        return self.head(self.body(batch[0])).squeeze(1)


class Normed(FederatedLightningModule):
    """Classification with BatchNorm."""

    def __init__(self, algorithm=None, **federation):
        super().__init__(FedAvg(0.05) if algorithm is None else algorithm, **federation)
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

    def objective(self, batch):
        x, y = batch
        return F.cross_entropy(self.net(x), (y > 0).long())


class Personal(FederatedLightningModule):
    """Regression with a personal offset: y = w'x + v_i."""

    personal_parameters = ("offset",)

    def __init__(self, algorithm=None, **federation):
        super().__init__(FedAvg(0.05) if algorithm is None else algorithm, **federation)
        self.save_hyperparameters()
        self.line = nn.Linear(6, 1, bias=False)
        self.offset = nn.Parameter(torch.zeros(1))

    def objective(self, batch):
        x, y = batch
        return F.mse_loss(self.line(x).squeeze(1) + self.offset, y)


def clients(count=4, sizes=(12, 9, 15, 10), seed=0):
    """One regression data set a client, of unequal size and with offsets of their own."""
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(6, generator=draw)
    sets = []
    for i in range(count):
        x = torch.randn(sizes[i % len(sizes)], 6, generator=draw)
        noise = 0.1 * torch.randn(len(x), generator=draw)
        sets.append(TensorDataset(x, x @ weight + i - 1.5 + noise))
    return sets


def regression_data(**options):
    """Four clients; validation and test data."""
    defaults = {"batch_size": 4, "local_steps": 3, "rounds_per_epoch": 5, "seed": 1}
    return FederatedDataModule.from_datasets(
        clients(), val=clients(seed=7)[0], test=clients(seed=8)[0], **{**defaults, **options}
    )


def trainer(tmp_path=None, **options):
    """A silent trainer on one device."""
    defaults = {
        "accelerator": ACCELERATOR,
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": tmp_path,
        "max_steps": 7,
    }
    return Trainer(**{**defaults, **options})


def fitted(task, data=None, tmp_path=None, **options):
    fit = trainer(tmp_path, **options)
    fit.fit(task, regression_data() if data is None else data)
    return fit
