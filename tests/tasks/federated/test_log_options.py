"""Values of a training step are reported as Lightning reports them: by round, by epoch, or both."""

from __future__ import annotations

import csv

import pytest
import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.callbacks import EarlyStopping
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanAbsoluteError

from fedlightning import federate
from fedlightning.algorithms import FedAvg
from fedlightning.oracle import Sequential
from fedlightning.tasks.federated.log_options import LogOptions, name_of_epoch, of_rounds
from tests.support.lit import Lit, made
from tests.support.small import regression_data, trainer

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")


class Logs(Lit):
    """Logs one value in every way; it is the number of the step in its epoch, from 1."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def training_step(self, batch, batch_idx):
        self.log("value", torch.tensor(1.0 + batch_idx), **self.options)
        return self.loss(batch)


WAYS = {
    "default": {},
    "step": {"on_step": True, "on_epoch": False},
    "epoch": {"on_step": False, "on_epoch": True},
    "both": {"on_step": True, "on_epoch": True},
    "epoch beside the default": {"on_epoch": True},
    "without a logger": {"on_step": False, "on_epoch": True, "logger": False},
    "steps without a logger": {"logger": False},
    "both without a logger": {"on_step": True, "on_epoch": True, "logger": False},
}


class Seen(Callback):
    """Notes what callbacks find of the value after each step and each epoch."""

    def __init__(self):
        self.steps, self.epochs = [], []

    def on_train_batch_end(self, trainer, *args):
        self.steps.append(self.found(trainer))

    def on_train_epoch_end(self, trainer, *args):
        self.epochs.append(self.found(trainer))

    def found(self, trainer):
        return {k: float(v) for k, v in trainer.callback_metrics.items() if k.startswith("value")}


def logged(folder):
    """The cells that begin with the value's name, by step."""
    if not (folder / "metrics.csv").is_file():
        return []
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [(int(row["step"]), name, float(cell)) for row in csv.DictReader(file) for name, cell in row.items()
                if name.startswith("value") and cell]  # fmt: skip
    return sorted(rows)


def fitted(folder, module, data):
    seen = Seen()
    fit = trainer(
        None, max_steps=-1, max_epochs=2, limit_val_batches=0, log_every_n_steps=1, callbacks=[seen],
        logger=CSVLogger(folder, name="", version=""),
    )  # fmt: skip
    fit.fit(module, data)
    return seen, logged(folder), {k: float(v) for k, v in fit.callback_metrics.items() if k.startswith("value")}


@pytest.mark.parametrize("way", WAYS)
def test_names_and_values_are_those_of_a_trainer(way, tmp_path):
    """Five rounds an epoch against five batches an epoch; Lightning counts the step from 0, rounds count from 1."""
    options = WAYS[way]
    alone = DataLoader(TensorDataset(torch.randn(20, 6), torch.randn(20)), batch_size=4)
    theirs, their_log, their_last = fitted(tmp_path / "theirs", made(Logs, **options), alone)
    ours, our_log, our_last = fitted(tmp_path / "ours", federate(made(Logs, **options), FedAvg), regression_data())
    assert our_log == [(step + 1, name, value) for step, name, value in their_log]
    assert ours.steps == theirs.steps
    assert ours.epochs == theirs.epochs
    assert our_last == their_last
    if way == "both":
        assert our_last == {"value": 3.0, "value_step": 5.0, "value_epoch": 3.0}
        assert (5, "value_epoch", 3.0) in our_log


@pytest.mark.parametrize("way", WAYS)
def test_no_row_of_a_logger_is_empty(way, tmp_path):
    fitted(tmp_path, federate(made(Logs, **WAYS[way]), FedAvg), regression_data())
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = [{name for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    assert len(rows) == (12 if way in ("epoch", "both", "epoch beside the default") else 10)  # with ends of epochs
    assert not [row for row in rows if row <= {"step", "epoch"}]


def test_a_callback_can_wait_for_the_mean_of_an_epoch():
    stop = EarlyStopping("value_epoch", patience=1, check_on_train_epoch_end=True)
    fit = trainer(max_steps=-1, max_epochs=9, limit_val_batches=0, callbacks=[stop])
    fit.fit(federate(made(Logs, on_epoch=True), FedAvg), regression_data())
    assert fit.global_step == 10


class LogsLoss(Lit):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss


def test_the_loss_of_an_epoch_takes_the_place_of_that_of_rounds(tmp_path):
    task = federate(made(LogsLoss), FedAvg)
    losses = []

    class Losses(Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            losses.append(float(pl_module.rounds.last.metrics["train_loss"]))

    logger = CSVLogger(tmp_path, name="", version="")
    options = {"max_steps": -1, "max_epochs": 2, "limit_val_batches": 0, "log_every_n_steps": 1, "logger": logger}
    trainer(None, callbacks=[Losses()], **options).fit(task, regression_data())
    with (tmp_path / "metrics.csv").open(newline="") as file:
        found = {int(row["step"]): float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]}
    assert found == pytest.approx({5: sum(losses[:5]) / 5, 10: sum(losses[5:]) / 5})


class Measures(Lit):
    def __init__(self, **options):
        super().__init__()
        self.options = options
        self.mae = MeanAbsoluteError()
        self.over_epochs = []

    def training_step(self, batch, batch_idx):
        self.mae(self(batch[0]), batch[1])
        self.log("mae", self.mae, **self.options)
        return self.loss(batch)

    def on_train_epoch_end(self):
        self.over_epochs.append(float(self.mae.compute()))


def test_a_metric_has_its_own_value_over_an_epoch():
    module = made(Measures, on_epoch=True)
    fit = trainer(max_steps=-1, max_epochs=2, limit_val_batches=0)
    fit.fit(federate(module, FedAvg, oracle=Sequential()), regression_data())
    first, second = module.over_epochs
    assert first != second
    assert float(fit.callback_metrics["mae_epoch"]) == second == float(fit.callback_metrics["mae"])
    assert float(fit.callback_metrics["mae_step"]) != second


def test_the_defaults_are_lightnings():
    assert LogOptions.of("a", {"on_step": None}) == LogOptions(on_step=True, on_epoch=False)
    assert issubclass(Logs, LightningModule)


def test_values_of_an_epoch_are_named_apart_from_those_of_steps():
    assert name_of_epoch("a", LogOptions(on_step=False, on_epoch=True)) == "a"
    assert name_of_epoch("a", LogOptions(on_epoch=True)) == "a_epoch"


def test_what_is_never_reported_is_refused():
    with pytest.raises(RuntimeError, match="logs 'value' with on_step=False and on_epoch=False, so never"):
        trainer(max_steps=1).fit(federate(made(Logs, on_step=False), FedAvg), regression_data())


@pytest.mark.parametrize("other", ["a_step", "a_epoch"])
def test_two_values_of_one_name_are_refused(other):
    both = {"a": LogOptions(on_epoch=True)}
    assert of_rounds({"a": 1, "b": 2}, both) == {"a_step": 1, "b": 2}
    with pytest.raises(ValueError, match=f"logs 'a' with on_step=True and on_epoch=True, which gives '{other}'"):
        of_rounds({"a": 1, other: 2}, both)
