"""LightningModules that know nothing of federations, and plain training of them on the minibatches of one client."""

from __future__ import annotations

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from fedlightning import FederatedDataModule
from tests.support.small import clients, trainer


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05)


class Lit(LightningModule):
    """Regression of 6 features with one hidden layer."""

    def __init__(self, hidden=5, optimizer=sgd):
        super().__init__()
        self.save_hyperparameters("hidden")
        self.optimizer = optimizer
        self.body = nn.Sequential(nn.Linear(6, hidden), nn.Tanh())
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)

    def loss(self, batch):
        x, y = batch
        return F.mse_loss(self(x), y)

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("rmse", loss.sqrt(), prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.loss(batch))

    def test_step(self, batch, batch_idx):
        self.log("test_loss", self.loss(batch))

    def predict_step(self, batch, batch_idx):
        return self(batch[0])

    def configure_optimizers(self):
        return self.optimizer(self.parameters())


def made(cls=Lit, **options):
    """A module whose parameters are the same at every call."""
    torch.manual_seed(0)
    return cls(**options)


def one_client(rounds_per_epoch=5, **options):
    """Federated data of one client: minibatches of four of its twelve samples."""
    defaults = {"batch_size": 4, "local_steps": 3, "seed": 1}
    return FederatedDataModule.from_datasets(clients(1), rounds_per_epoch=rounds_per_epoch, **{**defaults, **options})


def minibatches_of(data):
    """The minibatches of the only client in one epoch of rounds, in order."""
    found = []
    for batch in data.train_dataloader():
        (chunk,) = batch.cohorts[0].chunks(1)
        found += [tuple(leaf[0] for leaf in minibatch.data) for minibatch in chunk.minibatches()]
    return found


def trained_alone(module, rounds, tmp_path=None, data=None, **options):
    """The module after plain training on what the client of ``one_client`` meets in so many rounds."""
    data = one_client(rounds) if data is None else data
    batches = minibatches_of(data)
    alone = trainer(tmp_path, max_steps=-1, max_epochs=1, limit_val_batches=0, **options)
    alone.fit(module, DataLoader(batches, batch_size=None))
    return module


def distance(one, other):
    """The largest difference between parameters or buffers of two modules."""
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


class Classifier(LightningModule):
    """Classification of the data set ``Synthetic``."""

    def __init__(self, hidden=8, lr=0.1):
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(60, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def training_step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, batch_idx):
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
