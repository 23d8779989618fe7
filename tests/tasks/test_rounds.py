"""Rounds as training steps: the optimizer of a fit, the step of the global model, and rounds that are rejected."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning.algorithms import FedAvg, FedMiD
from fedlightning.federation.server import RoundRejectedError
from fedlightning.oracle import Sequential
from fedlightning.proximal import L1
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
