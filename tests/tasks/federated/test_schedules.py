"""Schedulers of a module run over the rounds of a fit as they would run over a Trainer's steps."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from lightning.pytorch import Callback
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Sampler

from fedlightning import federate
from fedlightning.algorithms import SCAFFOLD, FedAvg, StatefulFedAvg
from fedlightning.core.errors import UsageError
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


class Plain(Scheduled):
    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.08)
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


def every_third(module, optimizer):
    """Counted anew in every epoch of four."""
    return {"scheduler": lr_scheduler.ExponentialLR(optimizer, 0.5), "interval": "step", "frequency": 3}


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


@pytest.mark.parametrize("make", [by_epoch, by_step, one_cycle, every_second, every_third])
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


UNUSED = "FedAvg has a step size of its own: the schedule of the module's optimizer is not used."


def test_the_step_size_that_the_algorithm_names_has_no_schedule():
    task = federate(made(Scheduled, make=by_step), FedAvg(0.01))
    with pytest.warns(UserWarning, match=f"^{UNUSED}$"):
        trainer(max_steps=4, limit_val_batches=0).fit(task, regression_data())
    assert task.algorithm.lr == 0.01


@pytest.mark.parametrize("monitor", ["val_loss", None])
def test_a_scheduler_that_is_not_used_stops_no_fit(monitor):
    def waits(module, optimizer):
        return {"scheduler": lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), "monitor": monitor}

    def reads_the_clock(module, optimizer):
        return lr_scheduler.LambdaLR(optimizer, lambda _: 1 / (1 + module.current_epoch))

    for make in (waits, reads_the_clock):
        task = federate(made(Scheduled, make=make), FedAvg(0.01))
        with pytest.warns(UserWarning, match=f"^{UNUSED}$"):
            trainer(max_steps=4, limit_val_batches=0).fit(task, regression_data())
        assert task.plateau is None
        assert task.algorithm.lr == 0.01


@pytest.mark.filterwarnings("ignore:.* has a step size of its own")
def test_a_cycle_of_momentum_goes_on_beside_a_step_size_of_the_algorithms_own():
    kept, cycled = (federate(made(Scheduled, make=one_cycle), algorithm) for algorithm in (FedAvg(0.01), FedAvg))
    for task in (kept, cycled):
        trainer(max_steps=4, limit_val_batches=0).fit(task, regression_data())
    assert kept.algorithm.lr == 0.01
    assert kept.algorithm.local_optimizer.momentum == cycled.algorithm.local_optimizer.momentum


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


@pytest.mark.parametrize(("name", "interval"), [("current_epoch", "epoch"), ("global_step", "step")])
def test_a_scheduler_that_looks_at_the_clock_is_refused(name, interval):
    def by_clock(module, optimizer):
        scheduler = lr_scheduler.LambdaLR(optimizer, lambda count: 0.9 ** getattr(module, name))
        return {"scheduler": scheduler, "interval": interval}

    with pytest.raises(UsageError, match=f"a scheduler of configure_optimizers reads self.{name}: .* Take what"):
        trainer(max_epochs=2).fit(federate(Plain(by_clock), FedAvg), regression_data())


def test_a_scheduler_may_ask_the_trainer_for_all_else():
    def by_trainer(module, optimizer):
        return lr_scheduler.LambdaLR(optimizer, lambda count: 1 - count / module.trainer.max_epochs)

    task = federate(Plain(by_trainer), FedAvg)
    fit = trainer(max_epochs=2)
    fit.fit(task, regression_data(rounds_per_epoch=1))
    assert task.algorithm.lr.values == (0.08, 0.04)
    assert task.module.trainer is fit


@pytest.mark.parametrize(
    ("first", "by", "told"),
    [
        ({"max_epochs": 2}, by_epoch, False),
        ({"max_steps": 3}, by_epoch, True),
        ({"max_steps": 4}, by_epoch, False),
        ({"max_epochs": 3, "limit_train_batches": 1}, by_step, False),
        ({"max_epochs": 3, "limit_train_batches": 1}, by_epoch, True),
        ({"max_epochs": 1, "rounds_per_epoch": 5}, by_epoch, True),
    ],
)
def test_a_scheduler_that_is_stepped_in_the_midst_of_epochs_is_told(first, by, told, recwarn, tmp_path):
    data = partial(regression_data, rounds_per_epoch=2)
    length = {"rounds_per_epoch": first["rounds_per_epoch"]} if "rounds_per_epoch" in first else {}
    limits = {name: value for name, value in first.items() if name != "rounds_per_epoch"}
    fit = trainer(**{"max_steps": -1, "limit_val_batches": 0, **limits})
    fit.fit(federate(Plain(by), FedAvg), data(**length))
    fit.save_checkpoint(tmp_path / "half.ckpt")
    recwarn.clear()
    ends = EpochEnds()
    then = trainer(max_steps=-1, max_epochs=6, limit_val_batches=0, callbacks=[ends])
    then.fit(federate(Plain(by), FedAvg), data(), ckpt_path=tmp_path / "half.ckpt")
    assert any("is stepped every 2 rounds, counted from the first." in str(each.message) for each in recwarn) == told
    assert len(ends.rounds) > 1
    if by is by_epoch:
        assert any(rounds % 2 for rounds in ends.rounds) == told


class EpochEnds(Callback):
    """Notes after how many rounds epochs end."""

    def __init__(self):
        self.rounds = []

    def on_train_epoch_end(self, trainer, pl_module):
        self.rounds.append(trainer.global_step)


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
    """Linear warm-up and decay, as transformers.get_linear_schedule_with_warmup makes it."""
    total = int(module.trainer.estimated_stepping_batches)
    there = lr_scheduler.LambdaLR(optimizer, lambda done: min(done / 3, max(0.0, (total - 2 - done) / (total - 5))))
    return {"scheduler": there, "interval": "step"}


def there_and_back(module, optimizer):
    """A cosine that is 0 in the middle of a fit."""
    return {"scheduler": lr_scheduler.CosineAnnealingLR(optimizer, T_max=4), "interval": "step"}


def warm_up_begun(module, optimizer):
    config = warm_up(module, optimizer)
    config["scheduler"].step()
    return config


@pytest.mark.parametrize("kind", ["SGD", "Adam"])
@pytest.mark.parametrize("personal", [[], ["head"]])
@pytest.mark.parametrize("make", [warm_up, there_and_back])
def test_rounds_without_a_step_are_those_of_a_trainer(make, personal, kind):
    """The model stays, and what the optimizer remembers goes on: for one client, personal or not."""
    options = {"SGD": {"momentum": 0.9}, "Adam": {}}[kind]

    class Both(Scheduled):
        def configure_optimizers(self):
            optimizer = getattr(torch.optim, kind)(self.parameters(), lr=0.04, **options)
            return {"optimizer": optimizer, "lr_scheduler": self.make(self, optimizer)}

    ours, theirs = (made(Both, make=make).double() for _ in range(2))
    data = one_client(12, local_steps=1)
    task = federate(ours, StatefulFedAvg, oracle=Sequential(), personal_parameters=personal)
    trainer(max_steps=-1, max_epochs=1, precision="64-true").fit(task, data)
    assert 0.0 in task.algorithm.lr.values
    trained_alone(theirs, 12, data=one_client(12, local_steps=1), precision="64-true")
    assert distance(made(Both, make=make).double(), theirs) > 1e-2
    assert distance(task.personalize(0).module if personal else ours, theirs) < 1e-12


@pytest.mark.filterwarnings("ignore:.* has a step size of its own")
def test_a_method_that_divides_by_the_step_size_is_refused_before_the_first_round():
    task = federate(made(Plain, make=warm_up), SCAFFOLD)
    fit = trainer(max_steps=9, limit_val_batches=0)
    message = r"SCAFFOLD\(lr=<LambdaLR over 9 rounds>\) is 0.0 after 0 rounds: expected > 0, because .*stay above 0"
    with pytest.raises(ValueError, match=message):
        fit.fit(task, regression_data())
    assert fit.global_step == 0
    trainer(max_steps=9, limit_val_batches=0).fit(federate(made(Plain, make=warm_up), SCAFFOLD(0.1)), regression_data())


def test_the_smallest_of_all_values_is_known_beforehand():
    with pytest.raises(ValueError, match=r"<LambdaLR over 4 rounds>\) is -0.1 after 2 rounds: expected >= 0"):
        FedAvg(Tabulated((0.1, 0.0, -0.1, 0.0), "LambdaLR"))


def test_a_fit_without_any_step_is_refused():
    task = federate(made(Scheduled, make=lambda m, o: lr_scheduler.LambdaLR(o, lambda _: 0.0)), FedAvg)
    with pytest.raises(ValueError, match=r"module's SGD has lr=0\.0 in every round, .* expected a finite number > 0"):
        trainer(max_steps=2).fit(task, regression_data())


def test_a_checkpoint_of_a_fit_that_begins_without_a_step_is_read(tmp_path):
    module = made(Scheduled, make=warm_up)
    task = federate(module, StatefulFedAvg)
    fit = trainer(tmp_path, max_steps=9, limit_val_batches=0)
    fit.fit(task, regression_data())
    fit.save_checkpoint(tmp_path / "end.ckpt")
    again = federate(made(Scheduled, make=warm_up), StatefulFedAvg)
    trainer(tmp_path).test(again, regression_data(), ckpt_path=tmp_path / "end.ckpt")
    assert distance(module, again.module) == 0


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
def test_a_warm_up_that_has_begun_is_taken():
    task = federate(made(Scheduled, make=warm_up_begun), FedAvg)
    trainer(max_steps=8, limit_val_batches=0).fit(task, regression_data())
    assert task.algorithm.lr.values[:3] == pytest.approx((0.08 / 3, 0.16 / 3, 0.08))


class Keeping(Lit):
    """Keeps its optimizer or its scheduler."""

    def __init__(self, what, make=by_step, **options):
        super().__init__(**options)
        self.what, self.make = what, make

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.08)
        given = self.make(self, optimizer) if self.make else None
        self.kept = {"optimizer": optimizer, "scheduler": given and given["scheduler"]}.get(self.what)
        return {"optimizer": optimizer, **({"lr_scheduler": given} if given else {})}


@pytest.mark.parametrize("what", ["optimizer", "scheduler"])
def test_what_no_round_keeps_up_to_date_is_told(what):
    with pytest.warns(UserWarning, match=r"Keeping.kept does not follow the rounds.*logged as client_lr"):
        trainer(max_steps=1, limit_val_batches=0).fit(federate(made(Keeping, what=what), FedAvg), regression_data())


@pytest.mark.parametrize("options", [{"what": "nothing"}, {"what": "optimizer", "make": None}])
def test_what_needs_no_keeping_up_to_date_needs_no_word(options):
    trainer(max_steps=1, limit_val_batches=0).fit(federate(made(Keeping, **options), FedAvg), regression_data())
