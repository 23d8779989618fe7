"""Personal digits, a task on them, and short fits."""

from __future__ import annotations

import warnings

from torch.utils.data import DataLoader

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAPM
from fedlightning.data import IID, PersonalDigits
from fedlightning.oracle import Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import PersonalizedClassification
from tests.support.small import Personal, clients, regression_data, trainer

CLIENTS = 5


def digits(**options):
    defaults = {"participation": Uniform(size=3), "batch_size": 10, "local_steps": 4, "eval_batch_size": 30}
    return PersonalDigits(IID(CLIENTS), **{**defaults, **options})


def task(algorithm=None, personal=("head",), **options):
    algorithm = FedAPM(0.1) if algorithm is None else algorithm
    return PersonalizedClassification(algorithm, personal=personal, oracle=Vectorized(), **options)


def fitted(model, data, **options):
    fit = trainer(**{"max_steps": 4, "val_check_interval": 4, "check_val_every_n_epoch": None, **options})
    fit.fit(model, data)
    return fit


class Own(Personal):
    """A user's task with a personal part."""

    def forward(self, x):
        return self.line(x).squeeze(1) + self.offset

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.objective(batch), batch_size=len(batch[1]))
        self.log("val_r", -self.objective(batch), batch_size=len(batch[1]))

    test_step = validation_step

    def predict_step(self, batch, batch_idx):
        return self(batch[0])


def held_out_data(**options):
    defaults = {"batch_size": 4, "local_steps": 3, "rounds_per_epoch": 2, "seed": 1}
    held_out = {"val": clients(seed=7), "test": clients(seed=8)}
    return FederatedDataModule.from_datasets(clients(), **{**held_out, **defaults, **options})


def two_rounds(task, data=None, **options):
    fit = trainer(**{"max_steps": 2, **options})
    fit.fit(task, regression_data(rounds_per_epoch=2) if data is None else data)
    return fit


def plain_loader():
    return DataLoader(clients(seed=9)[0], batch_size=4)


def messages(run):
    """Warnings of a run that a user can act on."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        run()
    theirs = ("many workers", "across ranks is zero", "logging_interval", "LeafSpec")
    return [str(w.message) for w in found if not any(part in str(w.message) for part in theirs)]


class OneByOne:
    """The same task, its clients one after the other."""

    def evaluated_together(self, stage):
        return 1
