"""Schedulers of a module run over the rounds of a fit as they would run over a Trainer's steps."""

from __future__ import annotations

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Sampler

from fedlightning import federate
from fedlightning.algorithms import FedAvg, StatefulFedAvg
from fedlightning.core.serialisation import from_config, to_config
from fedlightning.oracle import Sequential
from fedlightning.tasks.federated.schedules import Tabulated, scheduled_groups
from tests.support.lit import Lit, distance, made, minibatches_of, one_client, trained_alone
from tests.support.small import regression_data, trainer

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no `val_dataloader`")


class Scheduled(Lit):
    """Has the scheduler that a function makes."""

    def __init__(self, make, **options):
        super().__init__(**options)
        self.make = make

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.08, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": self.make(self, optimizer)}


def by_epoch(module, optimizer):
    return lr_scheduler.CosineAnnealingLR(optimizer, T_max=module.trainer.max_epochs)


def by_step(module, optimizer):
    return {"scheduler": lr_scheduler.StepLR(optimizer, 2, gamma=0.5), "interval": "step"}


def one_cycle(module, optimizer):
    total = int(module.trainer.estimated_stepping_batches)
    return {"scheduler": lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total + 1), "interval": "step"}


def every_second(module, optimizer):
    return {"scheduler": lr_scheduler.ExponentialLR(optimizer, 0.5), "interval": "step", "frequency": 2}


def constant(module, optimizer):
    return lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)


class FourAnEpoch(Sampler):
    """Goes on where the epoch before ended."""

    done = 0

    def __iter__(self):
        self.done += 4
        return iter(range(self.done - 4, self.done))

    def __len__(self):
        return 4


@pytest.mark.parametrize("make", [by_epoch, by_step, one_cycle, every_second])
def test_rounds_of_one_step_are_the_steps_of_a_trainer(make):
    """Learning rates and, in a cycle, momentum."""
    ours, theirs = (made(Scheduled, make=make).double() for _ in range(2))
    epochs = {"max_steps": -1, "max_epochs": 3, "precision": "64-true"}
    data = one_client(4, local_steps=1)
    trainer(**epochs).fit(federate(ours, StatefulFedAvg, oracle=Sequential()), data)
    batches = one_client(12, local_steps=1)

    loader = DataLoader(minibatches_of(batches), batch_size=None, sampler=FourAnEpoch())
    trainer(**epochs, limit_val_batches=0).fit(theirs, loader)
    free = trained_alone(made(Scheduled, make=constant).double(), 12, data=batches, precision="64-true")
    assert distance(theirs, free) > 1e-3
    assert distance(ours, theirs) < 1e-12


def test_rounds_log_the_step_size_in_force():
    task = federate(made(Scheduled, make=by_step), FedAvg)
    fit = trainer(max_steps=5, limit_val_batches=0)
    fit.fit(task, regression_data())
    assert task.round_metrics["client_lr"] == pytest.approx(0.02)
    assert isinstance(task.algorithm.lr, Tabulated)


def test_a_resumed_run_follows_the_schedule(tmp_path):
    def task():
        return federate(made(Scheduled, make=by_step), StatefulFedAvg, oracle=Sequential())

    whole, first, resumed = task(), task(), task()
    trainer(tmp_path, max_steps=6, limit_val_batches=0).fit(whole, regression_data())
    half = trainer(tmp_path, max_steps=3, limit_val_batches=0)
    half.fit(first, regression_data())
    half.save_checkpoint(tmp_path / "half.ckpt")
    trainer(tmp_path, max_steps=6, limit_val_batches=0).fit(
        resumed, regression_data(), ckpt_path=tmp_path / "half.ckpt"
    )
    assert distance(whole, resumed) == 0


def test_the_step_size_that_the_algorithm_names_has_no_schedule(monkeypatch):
    said = []
    monkeypatch.setattr("fedlightning.tasks.federated.algorithms.rank_zero_info", said.append)
    task = federate(made(Scheduled, make=by_step), FedAvg(0.01))
    trainer(max_steps=4, limit_val_batches=0).fit(task, regression_data())
    assert task.algorithm.lr == 0.01
    assert said == ["FedAvg has a step size of its own: the schedule of the module's optimizer is not used."]


def test_the_optimizer_is_left_as_it_was():
    optimizer = torch.optim.SGD(made().parameters(), lr=0.1)
    groups = scheduled_groups(optimizer, [lr_scheduler.StepLR(optimizer, 1)], lambda: (3, 1))
    assert groups[0]["lr"].values == pytest.approx((0.1, 0.01, 0.001))
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_constant_options_stay_numbers():
    optimizer = torch.optim.Adam(made().parameters(), lr=0.1)
    (group,) = scheduled_groups(optimizer, [lr_scheduler.StepLR(optimizer, 10)], lambda: (3, 1))
    assert (group["lr"], group["betas"]) == (0.1, (0.9, 0.999))


def test_a_table_ends_with_its_last_value_and_can_be_stored():
    table = Tabulated((0.3, 0.2, 0.1))
    assert [table(rounds) for rounds in range(5)] == [0.3, 0.2, 0.1, 0.1, 0.1]
    assert from_config(to_config(table)) == table
    with pytest.raises(ValueError, match=r"Tabulated\(values=\(\)\): expected at least one"):
        Tabulated(())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda m, o: lr_scheduler.ReduceLROnPlateau(o),
            "ReduceLROnPlateau without the metric it waits for",
        ),
        (lambda m, o: {"scheduler": lr_scheduler.StepLR(o, 1), "interval": "hour"}, "StepLR: interval='hour'"),
    ],
)
def test_schedulers_that_clients_cannot_follow_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        trainer(max_steps=1).fit(federate(made(Scheduled, make=make), FedAvg), regression_data())


def test_something_that_is_no_scheduler_is_refused():
    with pytest.raises(TypeError, match="returns 'StepLR' as a scheduler: expected one of torch"):
        trainer(max_steps=1).fit(federate(made(Scheduled, make=lambda m, o: "StepLR"), FedAvg), regression_data())


def test_a_fit_without_end_is_refused():
    with pytest.raises(
        ValueError, match=r"StepLR: the values of all rounds are found out.*Set max_epochs or max_steps"
    ):
        trainer(max_steps=-1, max_epochs=-1).fit(federate(made(Scheduled, make=by_step), FedAvg), regression_data())


def test_gradients_of_an_earlier_fit_move_nothing():
    """A module that was fitted centrally keeps its last gradients."""
    module = made()
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = [parameter.detach().clone() for parameter in module.parameters()]
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1, weight_decay=0.1)
    scheduled_groups(optimizer, [lr_scheduler.StepLR(optimizer, 1)], lambda: (3, 1))
    assert all(torch.equal(a, b) for a, b in zip(before, module.parameters(), strict=True))
    assert not optimizer.state


@pytest.mark.filterwarnings("error")
def test_optimizers_that_need_a_closure_are_run_through():
    optimizer = torch.optim.LBFGS(made().parameters(), lr=0.1)
    (group,) = scheduled_groups(optimizer, [lr_scheduler.StepLR(optimizer, 1)], lambda: (3, 1))
    assert group["lr"].values == pytest.approx((0.1, 0.01, 0.001))


def test_step_sizes_may_be_tensors():
    rate = torch.tensor(0.1, dtype=torch.float64)
    optimizer = torch.optim.Adam(made().parameters(), lr=rate)
    (group,) = scheduled_groups(optimizer, [lr_scheduler.StepLR(optimizer, 1)], lambda: (3, 1))
    assert group["lr"].values == pytest.approx((0.1, 0.01, 0.001))
    assert isinstance(group["lr"].values[0], float)
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.1


def warm_up(module, optimizer):
    return {"scheduler": lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, done / 3)), "interval": "step"}


def warm_up_begun(module, optimizer):
    config = warm_up(module, optimizer)
    config["scheduler"].step()
    return config


def decay(module, optimizer):
    return {"scheduler": lr_scheduler.LambdaLR(optimizer, lambda done: max(0.0, 1 - done / 3)), "interval": "step"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            warm_up,
            r"LambdaLR of the module gives the step size 0 in the round after 0 others, .*scheduler\.step\(\) once",
        ),
        (decay, "LambdaLR of the module gives the step size 0 in the round after 3 others, and FedAvg takes steps > 0"),
    ],
)
def test_rounds_without_a_step_are_refused_before_the_first(make, message):
    task = federate(made(Scheduled, make=make), FedAvg)
    fit = trainer(max_steps=5, limit_val_batches=0)
    with pytest.raises(ValueError, match=message):
        fit.fit(task, regression_data())
    assert fit.global_step == 0


def test_step_sizes_of_zero_after_the_fit_or_of_no_use_are_no_matter():
    task = federate(made(Scheduled, make=decay), FedAvg)
    trainer(max_steps=3, limit_val_batches=0).fit(task, regression_data())
    assert task.algorithm.lr.values == pytest.approx((0.08, 0.16 / 3, 0.08 / 3))
    own = federate(made(Scheduled, make=warm_up), FedAvg(0.1))
    trainer(max_steps=3, limit_val_batches=0).fit(own, regression_data())


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_warm_up_that_has_begun_is_taken():
    task = federate(made(Scheduled, make=warm_up_begun), FedAvg)
    trainer(max_steps=4, limit_val_batches=0).fit(task, regression_data())
    assert task.algorithm.lr.values == pytest.approx((0.08 / 3, 0.16 / 3, 0.08, 0.08))
