"""Mistakes are explained before a round is computed."""

from __future__ import annotations

import csv

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.callbacks.every_process import EvaluateInEveryProcess
from fedlightning.callbacks.termination import EndTogether
from tests.support.evaluated import two_rounds
from tests.support.small import Line, Personal, clients, fitted, regression_data, trainer


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Line(weighting="sample"), ValueError, "weighting='sample': expected one of 'uniform', 'samples'"),
        (lambda: Line(buffers="avg"), ValueError, "buffers='avg': expected one of 'average', 'local'"),
        (lambda: Line(torch.optim.SGD), TypeError, "expected an object of a dataclass derived from"),
        (lambda: FedAvg("0.1"), TypeError, r"FedAvg\(lr='0.1'\): expected a number"),
        (lambda: FederatedDataModule.from_datasets(train=[]), ValueError, "give one data set a client"),
        (
            lambda: fitted(Line(FedAvg(0.1, local_optimizer=torch.optim.LBFGS))),
            ValueError,
            "local_optimizer=LBFGS is not elementwise",
        ),
        (
            lambda: fitted(Line(server_scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau)),
            ValueError,
            "server_scheduler=ReduceLROnPlateau",
        ),
        (
            lambda: trainer().fit(Personal(), torch.utils.data.DataLoader(clients()[0], batch_size=4)),
            TypeError,
            "instead of a round of cohorts",
        ),
    ],
)
def test_mistakes_are_explained(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_missing_objective_says_so():
    class Nothing(FederatedLightningModule):
        def __init__(self):
            super().__init__(FedAvg(0.1))
            self.line = nn.Linear(6, 1)

    with pytest.raises(TypeError, match=r"Nothing has no objective\. Write objective\(self, batch\): the loss of one"):
        two_rounds(Nothing())


class LogsAfterRounds(Line):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def on_train_batch_end(self, *args):
        self.log("value", float(self.trainer.global_step), **self.options)


@pytest.mark.parametrize(
    ("options", "rows"),
    [({}, ["1", "2", "3"]), ({"on_step": False, "on_epoch": True, "batch_size": 1}, []), ({"logger": False}, [])],
)
def test_the_round_of_a_value_is_logged_beside_it_alone(options, rows, tmp_path):
    """No logger gets a round without a value; the mean of an epoch comes at its end."""
    logger = CSVLogger(tmp_path, name="", version="")
    fitted(LogsAfterRounds(**options), max_steps=3, limit_val_batches=0, log_every_n_steps=1, logger=logger)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        found = [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    assert [row["step"] for row in found if row.keys() & {"value"}][: len(rows)] == rows
    assert not [row for row in found if row.keys() <= {"step", "epoch"}]


class EndsItself(LogsAfterRounds):
    def on_train_epoch_end(self):
        pass


class LogsAtTheEnd(LogsAfterRounds):
    def on_train_epoch_end(self):
        super().on_train_epoch_end()
        self.log("of_epoch", 1.0, on_step=False, on_epoch=True)


class EndsBeside:
    def on_train_epoch_end(self):
        pass


class EndsWithAnother(EndsBeside, LogsAfterRounds):
    pass


@pytest.mark.parametrize("kind", [LogsAfterRounds, EndsItself, LogsAtTheEnd, EndsWithAnother])
@pytest.mark.parametrize("on_step", [True, False])
def test_the_mean_of_an_epoch_is_logged_at_its_last_round(on_step, kind, tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    task = kind(on_step=on_step, on_epoch=True, batch_size=1)
    fitted(task, max_steps=7, limit_val_batches=0, log_every_n_steps=1, logger=logger)
    name = "value_epoch" if on_step else "value"
    with (tmp_path / "metrics.csv").open(newline="") as file:
        found = {row["step"]: float(row[name]) for row in csv.DictReader(file) if row[name]}
    assert found == {"5": 3.0, "7": 6.5}


@pytest.mark.parametrize(
    ("hook", "rows"),
    [
        ("on_train_start", [3]),
        ("on_train_epoch_start", [3, 6]),
        ("on_train_batch_start", [1, 2, 3, 4, 5, 6]),
        ("on_before_optimizer_step", [1, 2, 3, 4, 5, 6]),
        ("on_train_batch_end", [1, 2, 3, 4, 5, 6]),
        ("on_train_epoch_end", [3, 6]),
    ],
)
def test_checkpoints_and_rows_are_of_the_present_round_whichever_hook_logs(hook, rows, tmp_path):
    task = type("Logs", (Line,), {hook: lambda self, *_: self.log("value", 1.0)})()
    keeps_all = ModelCheckpoint(tmp_path / "kept", save_top_k=-1, every_n_train_steps=3)
    logger = CSVLogger(tmp_path, name="", version="")
    options = {"max_steps": 6, "limit_val_batches": 0, "log_every_n_steps": 1, "enable_checkpointing": True}
    run = trainer(**options, logger=logger, callbacks=[keeps_all])
    run.fit(task, regression_data(rounds_per_epoch=3))
    assert sorted(path.stem for path in (tmp_path / "kept").iterdir()) == ["epoch=0-step=3", "epoch=1-step=6"]
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file) if row["value"]] == rows


def test_rounds_in_which_no_hook_logs_are_no_rows_of_their_own(tmp_path):
    """Neither in later epochs nor in a later fit of the task."""

    class LogsOnce(Callback):
        def on_train_batch_end(self, run, task, *args):
            if run.global_step == 1:
                task.log("value", 1.0)

    task = Line()
    for number, callbacks in enumerate(([LogsOnce()], [])):
        logger = CSVLogger(tmp_path, name="", version=str(number))
        fit = trainer(max_steps=6, limit_val_batches=0, log_every_n_steps=1, logger=logger, callbacks=callbacks)
        fit.fit(task, regression_data(rounds_per_epoch=3))
        with (tmp_path / str(number) / "metrics.csv").open(newline="") as file:
            found = [{name for name, cell in row.items() if cell} for row in csv.DictReader(file)]
        assert len([row for row in found if "train_loss" in row]) == 6
        assert not [row for row in found if row <= {"step", "epoch"}]


def test_means_of_an_epoch_need_no_size_of_a_batch():
    class Logs(Line):
        def on_train_batch_end(self, *args):
            self.log("value", float(self.trainer.global_step), on_step=False, on_epoch=True)

    run = trainer(max_steps=3)
    run.fit(Logs(), regression_data(rounds_per_epoch=3))
    assert run.callback_metrics["value"].item() == 2.0


def test_automatic_optimization_is_refused():
    task = Line()
    task.automatic_optimization = True
    with pytest.raises(TypeError, match=r"Line\.automatic_optimization is True"):
        two_rounds(task)


class EndsValidationItself(Line):
    def on_validation_epoch_end(self):
        pass


class LogsItsOwnAxis(Line):
    def validation_step(self, batch, batch_idx):
        super().validation_step(batch, batch_idx)
        self.log("step", float(self.current_epoch))


class EndsWithItsOwnAxis(Line):
    def on_validation_epoch_end(self):
        self.log("step", float(self.current_epoch))


@pytest.mark.parametrize(
    ("cls", "steps"),
    [
        (Line, ["2", "4", "6"]),
        (EndsValidationItself, ["2", "4", "6"]),
        (LogsItsOwnAxis, ["0", "1", "2"]),
        (EndsWithItsOwnAxis, ["0", "1", "2"]),
    ],
)
def test_validations_are_logged_at_their_round_or_at_the_tasks_own_axis(cls, steps, tmp_path):
    logger = CSVLogger(tmp_path, name="", version="")
    fitted(cls(), regression_data(rounds_per_epoch=2), max_steps=6, logger=logger)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        assert [row["step"] for row in csv.DictReader(file) if row["val_loss"]] == steps


class LogsAllButItsAxis(EndsWithItsOwnAxis):
    """Logs an axis of its own in validations alone, and in a test before the fit."""

    def on_train_batch_end(self, *args):
        self.log("value", 1.0, on_step=False, on_epoch=True, batch_size=1)

    def test_step(self, batch, batch_idx):
        self.log("step", 7.0)


def test_an_axis_of_one_stage_is_not_that_of_another(tmp_path):
    logger, task = CSVLogger(tmp_path, name="", version=""), LogsAllButItsAxis()
    trainer().test(task, regression_data(), verbose=False)
    fitted(task, regression_data(rounds_per_epoch=2), max_steps=6, logger=logger)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [row["step"] for row in found if row["value"]] == ["2", "4", "6"]
    assert [row["step"] for row in found if row["val_loss"]] == ["0", "1", "2"]


class EndsEpochs(Line):
    """Has hooks of its own at the ends of epochs."""

    ended = 0

    def on_train_epoch_end(self):
        self.ended += 1

    def on_validation_epoch_end(self):
        self.ended += 1


class HasNone(Line):
    pass


class OfBoth(HasNone, EndsEpochs):
    pass


def test_hooks_behind_a_task_without_hooks_are_called():
    task = OfBoth()
    fitted(task, regression_data(rounds_per_epoch=2), max_steps=4, num_sanity_val_steps=0)
    assert task.ended == 4


@pytest.mark.parametrize("own_axis", [False, True])
def test_options_of_log_may_be_given_by_position(own_axis):
    class Logs(Line):
        def on_train_batch_end(self, *args):
            if own_axis:
                self.log("step", float(self.trainer.global_step))
            self.log("value", float(self.trainer.global_step), False, None, False, True, "mean", False, False)

    run = trainer(max_steps=3)
    run.fit(Logs(), regression_data(rounds_per_epoch=3))
    assert run.callback_metrics["value"].item() == 2.0


def test_a_task_with_callbacks_of_its_own_has_those_of_processes_once(caplog):
    class Stops(Line):
        def configure_callbacks(self):
            return EarlyStopping("train_loss")

    task, run = Stops(), trainer(max_steps=2)
    for _ in range(2):
        run.fit(task, regression_data())
        kinds = [type(each) for each in run.callbacks]
        assert [kinds.count(kind) for kind in (EndTogether, EvaluateInEveryProcess, EarlyStopping)] == [1, 1, 1]
    with caplog.at_level("INFO"):
        run.validate(Line(), regression_data(), verbose=False)
        run.validate(Line(), regression_data(), verbose=False)
    assert "EvaluateInEveryProcess" not in caplog.text
