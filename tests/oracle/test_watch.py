"""Parameters are read from the task's attributes, and frozen ones that an objective writes are put back."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning import FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.oracle import Sequential, Vectorized
from tests.support.small import fitted, regression_data


class Cached(FederatedLightningModule):
    """Has a penalty on parameters that it reaches in a way of its own."""

    def __init__(self, cache, penalty, oracle=None):
        super().__init__(FedAvg(0.05), oracle=oracle)
        self.line = nn.Linear(6, 1)
        self.cache, self.penalty = cache(self), penalty

    def objective(self, batch):
        x, y = batch
        return (self.line(x).squeeze(1) - y).square().mean() + self.penalty(self)


class Helper:
    def __init__(self, parameter):
        self.parameter = parameter

    def norm(self):
        return self.parameter.square().sum()


STALE = {
    "a list": (lambda task: [task.line.weight], lambda task: sum(p.square().sum() for p in task.cache)),
    "a dict": (lambda task: dict(task.named_parameters()), lambda task: task.cache["line.weight"].square().sum()),
    "an object": (lambda task: Helper(task.line.weight), lambda task: task.cache.norm()),
    "a view": (lambda task: [task.line.weight[:, :2]], lambda task: task.cache[0].square().sum()),
    "without gradient": (lambda task: [task.line.weight], lambda task: task.cache[0].detach().abs().sum()),
}


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(), None], ids=repr)
@pytest.mark.parametrize("where", STALE)
def test_a_parameter_that_is_read_past_the_attributes_is_refused(where, oracle):
    with pytest.raises(ValueError, match=r"reads parameter 'line\.weight' through a reference .* Read self\.line"):
        fitted(Cached(*STALE[where], oracle))


def test_parameters_read_from_the_attributes_are_the_clients():
    def penalty(task):
        shapes = [p.shape for p in task.cache]
        return sum(p.square().sum() for p in task.line.parameters() if p.shape in shapes)

    tasks = [Cached(lambda task: [task.line.weight], penalty, oracle) for oracle in (Sequential(), Vectorized())]
    tasks[1].load_state_dict(tasks[0].state_dict())
    for task in tasks:
        fitted(task)
    torch.testing.assert_close(tasks[0].line.weight, tasks[1].line.weight)


class Teacher(FederatedLightningModule):
    """Follows its network with a frozen one, from an epoch on."""

    def __init__(self, follow, since=0, oracle=None):
        super().__init__(FedAvg(0.05), oracle=oracle)
        self.net, self.teacher = nn.Linear(6, 1), nn.Linear(6, 1).requires_grad_(False)
        self.follow, self.since = follow, since

    def objective(self, batch):
        x, y = batch
        if self.current_epoch >= self.since:
            for slow, fast in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                self.follow(slow, fast)
        answer = self.net(x)
        return F.mse_loss(answer.squeeze(1), y) + F.mse_loss(answer, self.teacher(x))


def replaced(slow, fast):
    slow.data = 0.9 * slow.data + 0.1 * fast.data


def moved(slow, fast):
    slow.data.mul_(0.9)


@pytest.mark.parametrize("follow", [replaced, moved])
def test_a_frozen_parameter_written_past_autograd_is_written_client_by_client(follow, caplog):
    caplog.set_level(logging.INFO)
    ends = []
    for oracle in (Sequential(), Vectorized(), None):
        torch.manual_seed(0)
        task = Teacher(follow, oracle=oracle)
        fitted(task, regression_data(local_steps=25))
        ends.append((task.net.weight.detach(), task.teacher.weight.detach()))
    for net, teacher in ends[1:]:
        torch.testing.assert_close(net, ends[0][0])
        torch.testing.assert_close(teacher, ends[0][1])
    assert "frozen parameter 'teacher.weight', which all clients share" in caplog.text


def test_the_look_leaves_frozen_parameters_as_they_were():
    task = Teacher(moved, oracle=Sequential())
    before = task.teacher.weight.clone()
    fitted(task, regression_data(local_steps=1), max_steps=1)
    torch.testing.assert_close(task.teacher.weight, before * 0.9**4)  # four clients, and nothing for the look


def test_writes_past_autograd_that_begin_late_are_right_or_refused():
    data = regression_data(local_steps=25)
    data.rounds_per_epoch = 1
    ends = []
    for oracle in (Sequential(), Vectorized(), Vectorized(replay=False)):
        torch.manual_seed(0)
        task = Teacher(replaced, since=2, oracle=oracle)
        fitted(task, data, max_steps=4)
        ends.append(task.net.weight.detach())
    for end in ends[1:]:
        torch.testing.assert_close(end, ends[0])
    with pytest.raises(RuntimeError, match="begun to write into the frozen parameter 'teacher"):
        fitted(Teacher(moved, since=2, oracle=Vectorized()), data, max_steps=4)


def test_a_buffer_in_the_memory_of_a_parameter_is_refused():
    task = Cached(lambda task: None, lambda task: 0.0)
    task.register_buffer("start", task.line.weight.detach())
    with pytest.raises(ValueError, match=r"buffer 'start' shares its memory with parameter 'line\.weight'"):
        fitted(task)
    task.start = task.line.weight.detach().clone()
    fitted(task)


def test_parameters_in_one_storage_are_told_apart():
    task = Cached(lambda task: None, lambda task: task.fixed.square().sum())
    both = torch.randn(7)
    task.line.weight = nn.Parameter(both[:6].view(1, 6))
    task.fixed = nn.Parameter(both[6:], requires_grad=False)
    fitted(task)
    assert torch.equal(task.fixed, both[6:])


def test_a_kept_parameter_is_found_beside_transformations_of_functions():
    def penalty(task):
        grad = torch.func.grad(lambda x: x.square().sum())(task.line.weight)
        return 0.1 * grad.square().sum() + 0.1 * task.kept[0].square().sum()

    def keep(task):
        task.kept = [task.line.weight]

    with pytest.raises(ValueError, match=r"reads parameter 'line\.weight' through a reference"):
        fitted(Cached(keep, penalty))
