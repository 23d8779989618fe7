"""Values of a round have the names that the module gave them."""

import csv

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import DataLoader
from torchmetrics import MeanAbsoluteError

from fedlightning import FederatedDataModule, federate
from fedlightning.algorithms import FedAvg, FedMM, StatefulFedAvg
from fedlightning.callbacks import ClientValuesFile, History
from fedlightning.oracle import Sequential
from fedlightning.tasks.federated.rounds import named_as_logged
from tests.support.lit import Lit, made
from tests.support.small import clients, regression_data, trainer


def test_logged_values_have_their_own_names():
    metrics = {"train_loss": 1.0, "drift": 2.0, "train_logged/accuracy": 3.0, "train_logged/train_loss": 4.0}
    assert named_as_logged(metrics) == {"train_loss": 4.0, "drift": 2.0, "accuracy": 3.0}


class Named(Lit):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log(self.name, 2 * loss)
        return loss


@pytest.mark.parametrize("name", ["twice", "train_loss"])
def test_the_clients_values_have_the_names_that_loggers_have(name, tmp_path):
    path = tmp_path / "clients.csv"
    task = federate(made(Named, name=name), FedAvg(0.05))
    fit = trainer(max_steps=1, limit_val_batches=0, callbacks=[ClientValuesFile(str(path))])
    fit.fit(task, regression_data())
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert not [column for column in rows[0] if "logged/" in column]
    mean = sum(float(row[name]) for row in rows) / 4
    assert mean == pytest.approx(float(fit.callback_metrics[name]), rel=1e-6)
    last = task.rounds.last
    assert set(last.columns) == {"train_loss", name, "drift"}
    assert last.metrics == task.round_metrics


class Shown(Lit):
    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.log("plain", loss, prog_bar=True)
        self.log("both", loss, prog_bar=True, on_step=True, on_epoch=True)
        self.log("epoch", loss, prog_bar=True, on_step=False, on_epoch=True)
        self.log("hidden", loss)
        return loss


def test_the_progress_bar_shows_the_value_of_each_round():
    seen = []

    class Look(Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            metrics = pl_module.rounds.last.metrics
            seen.append((dict(trainer.progress_bar_metrics), float(metrics["plain"]), float(metrics["both"])))

    fit = trainer(max_steps=2, limit_val_batches=0, callbacks=[Look()])
    fit.fit(federate(made(Shown), FedAvg), regression_data())
    assert [shown for shown, _, _ in seen] == [{"plain": plain, "both_step": both} for _, plain, both in seen]
    assert set(fit.progress_bar_metrics) == {"plain", "both_step", "both_epoch", "epoch"}


@pytest.mark.parametrize("name", ["drift", "upload", "clients", "client_lr", "dual_norm", "round_time", "client"])
def test_names_of_what_rounds_report_are_refused(name):
    task = federate(made(Named, name=name), FedMM(0.05))
    with pytest.raises(
        ValueError, match=rf"training_step logs '{name}', .* under another name, such as 'train_{name}'"
    ):
        trainer(max_steps=1, limit_val_batches=0).fit(task, regression_data())


class Measured(Lit):
    """Logs the loss and a metric; its clients have unequal losses in every round."""

    def __init__(self, **options):
        super().__init__()
        self.options = options
        self.mae = MeanAbsoluteError()

    def training_step(self, batch, batch_idx):
        loss = self.loss(batch)
        self.mae(self(batch[0]), batch[1])
        self.log("mine", loss, on_epoch=True, **self.options)
        self.log("mae", self.mae, on_epoch=True, **self.options)
        return loss


@pytest.mark.parametrize(("on_step", "suffix"), [(False, ""), (True, "_epoch")])
def test_the_curve_of_a_run_has_the_values_of_epochs_that_loggers_have(on_step, suffix, tmp_path):
    history = History()
    logger = CSVLogger(tmp_path, name="", version="")
    fit = trainer(max_steps=-1, max_epochs=2, log_every_n_steps=1, logger=logger, callbacks=[history])
    fit.fit(federate(made(Measured, on_step=on_step), FedAvg, oracle=Sequential()), regression_data())
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for name in (f"mine{suffix}", f"mae{suffix}"):
        logged = [float(row[name]) for row in rows if row[name]]
        assert len(set(logged)) == 2
        assert [row[name] for row in history.rows] == pytest.approx(logged, rel=1e-6)


def test_the_curve_has_the_mean_of_the_epoch_so_far(tmp_path):
    history, means = History(), []

    class Rounds(Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            means.append(float(pl_module.rounds.last.metrics["mine"]))

    fit = trainer(max_steps=5, val_check_interval=2, check_val_every_n_epoch=None, callbacks=[history, Rounds()])
    fit.fit(federate(made(Measured, on_step=False), FedAvg, oracle=Sequential()), regression_data())
    assert [row["mine"] for row in history.rows] == pytest.approx([sum(means[:2]) / 2, sum(means[:4]) / 4])


class Epochs(Callback):
    """Notes what is logged of each epoch when it ends."""

    def __init__(self):
        self.values = []

    def on_train_epoch_end(self, trainer, module):
        self.values.append([float(trainer.callback_metrics[name]) for name in ("mine", "mae")])


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")
@pytest.mark.parametrize("rounds", [1, 3])
def test_callbacks_meet_the_values_of_the_epoch_that_ends(rounds):
    """As with a plain Trainer on all data, one step a round."""
    (whole,) = clients(1)
    ours, theirs = Epochs(), Epochs()
    data = FederatedDataModule.from_datasets([whole], batch_size=None, local_steps=1, rounds_per_epoch=rounds)
    options = {"max_steps": -1, "max_epochs": 3, "limit_val_batches": 0}
    trainer(**options, callbacks=[ours]).fit(federate(made(Measured, on_step=False), StatefulFedAvg), data)
    batches = DataLoader([whole.tensors] * rounds, batch_size=None)
    trainer(**options, callbacks=[theirs]).fit(made(Measured, on_step=False), batches)
    assert len(ours.values) == 3
    torch.testing.assert_close(torch.tensor(ours.values), torch.tensor(theirs.values))


def test_an_epoch_that_is_cut_short_has_its_values_too():
    fit = trainer(max_steps=2, limit_val_batches=0)
    fit.fit(federate(made(Measured, on_step=False), FedAvg), regression_data())
    assert 0 < fit.callback_metrics["mae"] < 10
