"""A scheduler that waits for a metric decides after validations, as with a Trainer."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from fedlightning import FederatedDataModule, federate
from fedlightning.algorithms import StatefulFedAvg
from fedlightning.oracle import Sequential
from fedlightning.tasks.federated.plateau import Followed, Plateau
from tests.support.lit import Lit, distance, made
from tests.support.small import clients, regression_data, trainer


class Waits(Lit):
    """Halves its learning rate whenever the validation loss has not become much better."""

    monitor = "val_loss"

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)
        scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.3)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": self.monitor}}


def data():
    return FederatedDataModule.from_datasets(
        clients(1), val=clients(seed=7)[0], batch_size=None, local_steps=1, rounds_per_epoch=3
    )


def test_decisions_hold_from_their_round_on():
    schedule = Followed([(0, 0.3), (4, 0.1), (7, 0.05)])
    assert [schedule(rounds) for rounds in (0, 3, 4, 6, 7, 100)] == [0.3, 0.3, 0.1, 0.1, 0.05, 0.05]
    assert repr(schedule) == "Followed([(0, 0.3), (4, 0.1), (7, 0.05)])"


def test_one_client_trains_as_a_trainer_does():
    ours, theirs = (made(Waits).double() for _ in range(2))
    options = {"max_steps": -1, "max_epochs": 8, "precision": "64-true"}
    task = federate(ours, StatefulFedAvg, oracle=Sequential())
    trainer(**options).fit(task, data())
    whole = tuple(leaf.double() for leaf in clients(1)[0].tensors)
    held_out = tuple(leaf.double() for leaf in clients(seed=7)[0].tensors)
    trainer(**options).fit(theirs, DataLoader([whole] * 3, batch_size=None), DataLoader([held_out], batch_size=None))
    changes = task.algorithm.lr.changes
    assert len(changes) > 2
    assert all(since % 3 == 0 for since, _ in changes)
    assert distance(ours, theirs) < 1e-12


def test_a_resumed_run_goes_on_with_its_decisions(tmp_path):
    def fitted(epochs, ckpt_path=None):
        task = federate(made(Waits), StatefulFedAvg, oracle=Sequential())
        fit = trainer(tmp_path, max_steps=-1, max_epochs=epochs)
        fit.fit(task, data(), ckpt_path=ckpt_path)
        fit.save_checkpoint(tmp_path / f"{epochs}.ckpt")
        return task

    whole = fitted(8)
    fitted(4)
    resumed = fitted(8, tmp_path / "4.ckpt")
    assert resumed.algorithm.lr.changes == whole.algorithm.lr.changes
    assert distance(whole, resumed) == 0


def test_a_fit_that_validates_nothing_is_refused():
    nothing = FederatedDataModule.from_datasets(clients(1), batch_size=None, local_steps=1, rounds_per_epoch=3)
    with pytest.raises(RuntimeError, match=r"waits for 'val_loss' and looks at it after each validation.*val data"):
        trainer(max_steps=3).fit(federate(made(Waits), StatefulFedAvg), nothing)


class WaitsForNothing(Waits):
    monitor = "val_accuracy"


def test_a_missing_metric_is_named():
    with pytest.raises(RuntimeError, match=r"waits for 'val_accuracy', which the validation did not log\. There are: "):
        trainer(max_steps=5).fit(federate(made(WaitsForNothing), StatefulFedAvg), regression_data())


def test_a_scheduler_without_a_metric_is_refused():
    scheduler = ReduceLROnPlateau(torch.optim.SGD(made().parameters(), lr=0.1))
    with pytest.raises(ValueError, match="ReduceLROnPlateau without the metric it waits for"):
        Plateau(scheduler, None)


class WithMonitorBeside(Waits):
    """Names the metric where Lightning takes it for a scheduler without a configuration."""

    def configure_optimizers(self):
        configured = super().configure_optimizers()
        config = configured["lr_scheduler"]
        return {"optimizer": configured["optimizer"], "lr_scheduler": config["scheduler"], "monitor": config["monitor"]}


class WaitsForTwo(Waits):
    """Looks at every second validation."""

    def configure_optimizers(self):
        configured = super().configure_optimizers()
        configured["lr_scheduler"]["frequency"] = 2
        return configured


@pytest.mark.parametrize("cls", [WithMonitorBeside, WaitsForTwo])
def test_configurations_mean_what_they_mean_to_a_trainer(cls):
    ours, theirs, every = (made(kind).double() for kind in (cls, cls, Waits))
    options = {"max_steps": -1, "max_epochs": 8, "precision": "64-true"}
    trainer(**options).fit(federate(ours, StatefulFedAvg, oracle=Sequential()), data())
    whole = tuple(leaf.double() for leaf in clients(1)[0].tensors)
    held_out = tuple(leaf.double() for leaf in clients(seed=7)[0].tensors)
    for module in (theirs, every):
        trainer(**options).fit(
            module, DataLoader([whole] * 3, batch_size=None), DataLoader([held_out], batch_size=None)
        )
    assert distance(ours, theirs) < 1e-12
    assert (distance(theirs, every) > 1e-4) == (cls is WaitsForTwo)


def test_the_number_of_validations_is_stored():
    class Metrics:
        callback_metrics = {"val_loss": torch.tensor(1.0)}  # noqa: RUF012
        global_step = 3

        class strategy:
            broadcast = staticmethod(lambda value: value)

    def plateau():
        optimizer = torch.optim.SGD(made().parameters(), lr=0.1)
        return Plateau(ReduceLROnPlateau(optimizer, patience=0), "val_loss", frequency=2)

    first, second = plateau(), plateau()
    for _ in range(3):
        first.step(Metrics())
    second.load_state_dict(first.state_dict())
    second.step(Metrics())
    assert second.schedules[0].changes == [(0, 0.1), (3, pytest.approx(0.01))]


def test_decisions_stay_in_order_if_rounds_come_again():
    class Metrics:
        callback_metrics = {"val_loss": torch.tensor(1.0)}  # noqa: RUF012

        class strategy:
            broadcast = staticmethod(lambda value: value)

        def __init__(self, rounds):
            self.global_step = rounds

    plateau = Plateau(ReduceLROnPlateau(torch.optim.SGD(made().parameters(), lr=1.0), patience=0), "val_loss")
    for rounds in (3, 6, 9, 3, 6):
        plateau.step(Metrics(rounds))
    assert plateau.schedules[0].changes == [(0, 1.0), (3, pytest.approx(1e-3)), (6, pytest.approx(1e-4))]


def test_a_fit_from_the_start_decides_anew(tmp_path):
    """After a resumed fit, a loaded checkpoint, and a validation of a checkpoint."""

    def fitted(task, epochs, ckpt_path=None):
        fit = trainer(tmp_path, max_steps=-1, max_epochs=epochs)
        fit.fit(task, data(), ckpt_path=ckpt_path)
        return fit

    def new():
        return federate(made(Waits), StatefulFedAvg, oracle=Sequential())

    path = tmp_path / "4.ckpt"
    stored = new()
    fitted(stored, 4).save_checkpoint(path)
    assert len(stored.algorithm.lr.changes) > 1
    resumed, loaded, validated = new(), new(), new()
    fitted(resumed, 5, path)
    checkpoint = torch.load(path, weights_only=False)
    loaded.on_load_checkpoint(checkpoint)
    loaded.load_state_dict(checkpoint["state_dict"])
    trainer(tmp_path).validate(validated, data(), ckpt_path=path, verbose=False)
    for task in (resumed, loaded, validated):
        fitted(task, 1)
        assert all(since in (0, 3) for since, _ in task.algorithm.lr.changes)
        assert task.algorithm.lr.changes[0] == (0, 0.05)
        assert len(task.algorithm.lr.changes) == 1
