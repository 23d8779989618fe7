"""Rounds as training steps: the optimizer of a fit, the step of the global model, and rounds that are rejected."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from fedlightning.algorithms import SCAFFOLD, FedAvg, FedMiD, FedProx
from fedlightning.core.errors import UsageError
from fedlightning.federation.server import RoundRejectedError
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.proximal import L1
from fedlightning.schedules import Cosine, Exponential, Milestones
from tests.support.small import Line, Personal, fitted, regression_data, trainer


class Seen(Line):
    """Notes whether a round runs, in the objective and after the round."""

    def __init__(self, algorithm=None, **federation):
        super().__init__(algorithm, oracle=Sequential(), **federation)
        self.seen = []

    def objective(self, batch):
        self.seen.append(self.rounds.running)
        return super().objective(batch)

    def on_train_batch_end(self, *_):
        self.seen.append(self.rounds.running)


def test_a_round_runs_while_clients_compute():
    task = Seen()
    assert not task.rounds.running
    fitted(task, max_steps=1, limit_val_batches=0)
    assert task.seen[-1] is False
    assert set(task.seen[:-1]) == {True}


class Threads(FedAvg):
    """FedAvg that notes on how many threads the server steps."""

    seen: ClassVar[list[int]] = []

    def server_update(self, *arguments, **options):
        self.seen.append(torch.get_num_threads())
        return super().server_update(*arguments, **options)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("oracle", "expected"), [(Vectorized(threads=1), 1), (Vectorized(), 2), (Sequential(), 2)])
def test_the_rest_of_a_round_has_the_threads_of_its_gradients(oracle, expected):
    Threads.seen.clear()
    fitted(Line(Threads(0.05), oracle=oracle), max_steps=3, limit_val_batches=0)
    assert Threads.seen == [expected] * 3, "a resumed round would have other last bits than the same one of a whole fit"
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_so_has_the_comparison_with_the_round_before(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "fedlightning.tasks.fit.rounds.refuse_gradient_hooks", lambda task: seen.append(torch.get_num_threads())
    )
    task = Line(FedAvg(0.05), oracle=Vectorized(threads=1))
    for _ in range(2):
        fitted(task, max_steps=3, limit_val_batches=0)
    assert seen == [2, 1, 1] * 2, "the first round of a fit has nothing to compare with, and its oracle may be open"


def test_the_optimizer_moves_the_shared_parameters_alone():
    task = Personal()
    fit = fitted(task, max_steps=1)
    (group,) = fit.optimizers[0].param_groups
    assert [id(parameter) for parameter in group["params"]] == [id(task.line.weight)]


def test_the_model_is_the_server_s_point_after_each_round():
    task = Line(FedAvg(0.05))
    fitted(task, max_steps=2)
    point = torch.cat([parameter.detach().flatten() for parameter in task.parameters()])
    assert torch.equal(point, task.run.simulation.server.point)
    assert task.run.at_round_boundary
    assert task.round_metrics["client_lr"] == 0.05


def test_a_prefix_that_fits_no_parameter_is_named_before_the_first_round():
    with pytest.raises(ValueError, match=r"drift_parameters.*'hed'"):
        fitted(Line(drift_parameters=["hed"]))
    with pytest.raises(ValueError, match="'hed'"):
        fitted(Line(FedMiD(0.05), regularizer={"hed": L1(0.1)}))


class Diverging(Line):
    def objective(self, batch):
        loss = super().objective(batch)["loss"]
        return loss * (torch.nan if self.trainer.global_step == 1 else 1.0)


@pytest.mark.filterwarnings("ignore:NaN or infinite numbers came from client")
def test_a_rejected_round_is_numbered_and_leaves_the_state_before_it(tmp_path):
    task = Diverging(oracle=Sequential())
    with pytest.raises(RoundRejectedError, match=r"^Round 2: All 4 clients of the cohort returned NaN") as error:
        trainer(tmp_path, max_steps=3, enable_checkpointing=True, limit_val_batches=0).fit(task, regression_data())
    assert not task.rounds.running
    (path,) = tmp_path.rglob("before-rejected-round-2.ckpt")
    assert str(path) in str(error.value)
    assert torch.load(path, weights_only=True)["global_step"] == 1


def test_the_dtype_of_a_round_is_that_of_what_is_trained():
    task = Line().double()
    task.head.bias = nn.Parameter(task.head.bias.detach().float(), requires_grad=False)
    task.objective = lambda batch: (task.head.weight @ torch.tanh(task.body[0](batch[0])).T).square().mean()
    fitted(task, max_steps=1, precision="64-true", limit_val_batches=0)
    assert task.run.simulation.server.point.dtype == torch.float64


class Noting(Callback):
    """Notes what callbacks see of every round."""

    def on_train_start(self, *_):
        self.rows = []

    def on_train_batch_end(self, trainer, *_):
        self.rows.append({name: float(value) for name, value in trainer.callback_metrics.items()})


def test_values_of_schedules_are_logged_in_every_round():
    noting = Noting()
    method = FedProx(
        {"body": Exponential(0.08, gamma=0.5), "default": 0.01}, mu=Milestones({0: 1.0, 2: 0.1}), local_clip=5.0
    )
    fitted(Line(method), max_steps=4, callbacks=[noting])
    seen = {
        name: [row[name] for row in noting.rows]
        for name in noting.rows[0]
        if name.startswith(("schedule/", "client_lr"))
    }
    falling = pytest.approx([0.08, 0.04, 0.02, 0.01])
    assert seen == {
        "client_lr/body": falling,
        "client_lr/default": pytest.approx([0.01] * 4),
        "schedule/lr/body": falling,
        "schedule/lr/default": pytest.approx([0.01] * 4),
        "schedule/mu": pytest.approx([1.0, 1.0, 0.1, 0.1]),
    }


def test_nothing_is_logged_of_schedules_without_one():
    task = Line(FedProx(0.05))
    fitted(task, max_steps=1)
    assert not [name for name in task.round_metrics if name.startswith("schedule")]


def test_a_fit_by_a_schedule_is_fits_of_one_round_each_by_hand(tmp_path):
    data = regression_data(participation=Uniform(2))
    torch.manual_seed(0)
    task = Line(SCAFFOLD(Exponential(0.08, gamma=0.7)), oracle=Vectorized())
    fitted(task, data, max_steps=4)
    before = None
    for done in range(4):
        torch.manual_seed(0)
        step = Line(SCAFFOLD(0.08 * 0.7**done), oracle=Vectorized())
        fit = trainer(tmp_path, max_steps=done + 1)
        fit.fit(step, data, ckpt_path=before)
        before = tmp_path / f"{done}.ckpt"
        fit.save_checkpoint(before)
    for ours, theirs in zip(task.parameters(), step.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(task.client_states.c, step.client_states.c)


def test_a_second_fit_begins_the_schedule_again():
    task = Line(FedAvg(Exponential(0.08, gamma=0.5)))
    fitted(task, max_steps=3)
    assert task.round_metrics["client_lr"] == 0.02
    fitted(task, max_steps=1)
    assert task.round_metrics["client_lr"] == 0.08


def test_a_value_that_may_not_be_ends_the_fit_in_its_round():
    task = Line(SCAFFOLD(Cosine(0.08, rounds=2)))
    with pytest.raises(ValueError, match=r"After 2 rounds of the schedule: SCAFFOLD\(lr=0.0\): expected > 0"):
        fitted(task, max_steps=3)
    assert task.trainer.global_step == 2


def test_a_round_with_a_step_size_of_zero_leaves_the_model_where_it_is():
    task, weights = Line(FedAvg(Cosine(0.08, rounds=2))), []

    class Notes(Callback):
        def on_train_batch_end(self, *_):
            weights.append(task.head.weight.detach().clone())

    trainer(max_steps=4, callbacks=[Notes()]).fit(task, regression_data())
    assert [torch.equal(a, b) for a, b in pairwise(weights)] == [False, True, True]
    assert task.round_metrics["client_lr"] == float(task.round_metrics["drift"]) == 0.0


@pytest.mark.parametrize("lr", [Exponential(0.08, gamma=0.5), [Milestones({0: 0.1, 3: 0.01}), 0.05]])
@pytest.mark.filterwarnings("ignore:.*the second value is not used")
def test_a_checkpoint_rebuilds_the_schedule(lr, tmp_path):
    fit = fitted(Line(FedAvg(lr)), max_steps=2)
    fit.save_checkpoint(tmp_path / "last.ckpt")
    assert Line.load_from_checkpoint(tmp_path / "last.ckpt").algorithm.lr == lr


@pytest.mark.filterwarnings("ignore:Hyper-parameter 'algorithm' is left out of checkpoints. algorithm.lr is a function")
def test_a_function_trains_and_is_left_out_of_checkpoints(tmp_path):
    task = Line(FedAvg(lambda rounds: 0.08 / (1 + rounds)))
    fitted(task, max_steps=2).save_checkpoint(tmp_path / "last.ckpt")
    assert task.round_metrics["client_lr"] == 0.04
    given = Line.load_from_checkpoint(tmp_path / "last.ckpt", algorithm=FedAvg(lambda rounds: 0.08 / (1 + rounds)))
    fit = trainer(tmp_path, max_steps=3)
    fit.fit(given, regression_data(), ckpt_path=tmp_path / "last.ckpt")
    assert given.round_metrics["client_lr"] == pytest.approx(0.08 / 3)


class Replaces(Callback):
    def on_train_batch_end(self, trainer, pl_module, *args):
        pl_module.algorithm = replace(pl_module.algorithm, lr=1e-6)


def test_an_algorithm_that_is_set_during_a_fit_is_refused():
    with pytest.raises(UsageError, match=r"algorithm was set to FedAvg\(lr=1e-06.* would go on with FedAvg\(lr=0.05"):
        fitted(Line(FedAvg(0.05)), max_steps=3, callbacks=[Replaces()])
    fitted(Line(FedAvg(0.05)), max_steps=1, callbacks=[Replaces()])
