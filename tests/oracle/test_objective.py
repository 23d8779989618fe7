"""What an objective may return, and what it may do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils._named_member_accessor import NamedMemberAccessor

from fedlightning.oracle import Autocast, ObjectiveError, Sequential, Vectorized
from tests.support.cohorts import S, assert_equal_evaluations, setting
from tests.support.small import Line, fitted


def test_log_inside_the_objective():
    class Logs(Line):
        def objective(self, batch):
            self.log("inside", 1.0)
            return super().objective(batch)

    with pytest.raises(RuntimeError, match=r"objective called self.log\('inside'.*return a dict"):
        fitted(Logs())


def test_objective_that_is_no_scalar():
    class Rows(Line):
        def objective(self, batch):
            return {"loss": (self.head(self.body(batch[0])) - 1).square()}

        def validation_step(self, batch, batch_idx):
            pass

    with pytest.raises(ObjectiveError, match="must return a scalar"):
        fitted(Rows())


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized()], ids=str)
def test_a_loss_may_leave_one_block_out(oracle):
    def loss(net, batch):
        return net[0](batch[0]).square().mean()

    net = nn.Sequential(nn.Linear(6, 3), nn.Linear(3, 3))
    objective, *arguments = setting(net, (6,), loss=loss, personal=["net.1"])
    own = oracle.evaluator(objective, 1)(*arguments, "personal").g_personal
    assert torch.equal(own, torch.zeros(S, 12).double())


def test_loss_scale_leaves_gradients_alone():
    objective, *arguments = setting(nn.Linear(6, 3), (6,))
    expected = Sequential().evaluator(objective, 1)(*arguments)
    objective.autocast = Autocast("cpu", scale=2.0**10)
    for oracle in (Vectorized(), Sequential()):
        assert_equal_evaluations(oracle.evaluator(objective, 1)(*arguments), expected)


def test_unused_parameters_have_zero_gradients():
    def loss(net, batch):
        return net[0](batch[0]).square().mean()

    objective, *arguments = setting(nn.Sequential(nn.Linear(6, 3), nn.Linear(6, 3)), (6,), loss=loss)
    for oracle in (Vectorized(), Sequential()):
        g = oracle.evaluator(objective, 1)(*arguments).g
        assert g[:, :21].abs().sum() > 0
        assert not g[:, 21:].any()


@pytest.mark.parametrize("oracle", [Vectorized(), Sequential()])
@pytest.mark.parametrize("swap", [1, 2])
def test_an_interrupt_while_tensors_are_swapped_leaves_the_task_its_own(monkeypatch, oracle, swap):
    """PyTorch swaps a task's tensors for the client's and back; a checkpoint of others could not be written."""
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    objective, *arguments = setting(net, (4,))
    before = {name: id(tensor) for name, tensor in (*net.named_parameters(), *net.named_buffers())}
    whole, calls = NamedMemberAccessor.swap_tensors_dict, []

    def interrupted(self, tensors, allow_missing=False):
        calls.append(tensors)
        if len(calls) == swap:
            if swap == 1:
                whole(self, dict(list(tensors.items())[:1]), allow_missing=True)
            raise KeyboardInterrupt
        return whole(self, tensors, allow_missing)

    monkeypatch.setattr(NamedMemberAccessor, "swap_tensors_dict", interrupted)
    with pytest.raises(KeyboardInterrupt):
        oracle.evaluator(objective, 1)(*arguments)
    assert {name: id(tensor) for name, tensor in (*net.named_parameters(), *net.named_buffers())} == before
