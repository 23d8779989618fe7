"""Parameters are read from the task's attributes, in the forward pass, and none is written."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.oracle import ObjectiveError, Sequential, Vectorized
from tests.support.small import clients, fitted, regression_data


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


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(), None])
@pytest.mark.parametrize("follow", [replaced, moved])
def test_a_frozen_parameter_that_would_walk_from_client_to_client_is_refused(follow, oracle):
    task = Teacher(follow, oracle=oracle)
    before = task.teacher.weight.clone()
    with pytest.raises(ObjectiveError, match=r"writes into the frozen parameter 'teacher.weight'.*register_buffer"):
        fitted(task, regression_data(local_steps=1), max_steps=1)
    assert torch.equal(task.teacher.weight, before)  # the look has put it back


class BufferedTeacher(FederatedLightningModule):
    """Follows its network by a buffer, as the refusal says."""

    def __init__(self):
        super().__init__(FedAvg(0.05), oracle=Sequential())
        self.net = nn.Linear(6, 1)
        self.register_buffer("slow", torch.zeros(1, 6))

    def objective(self, batch):
        x, y = batch
        with torch.no_grad():
            self.slow.mul_(0.9).add_(self.net.weight, alpha=0.1)
        answer = self.net(x)
        return F.mse_loss(answer.squeeze(1), y) + F.mse_loss(answer, F.linear(x, self.slow))


def test_a_teacher_in_a_buffer_is_every_clients_own():
    ends = []
    for order in ((0, 1, 2, 3), (3, 1, 2, 0)):
        torch.manual_seed(0)
        task, data = BufferedTeacher(), clients(sizes=(12,))
        fitted(task, FederatedDataModule.from_datasets([data[i] for i in order], batch_size=None, local_steps=3))
        ends.append(torch.cat([task.net.weight.detach(), task.slow]))
    torch.testing.assert_close(*ends)


def checkpointed(task, x):
    return checkpoint(task.body, x, use_reentrant=False)


def checkpointed_by_itself(task, x):
    return checkpoint(task.body, x.clone().requires_grad_(), use_reentrant=True)


def hooked_on_a_parameter(task, x):
    hidden = task.body(x)
    if hidden.requires_grad:
        hidden.register_hook(lambda g: g * (1 + task.body.weight.detach().norm()))
    return hidden


def hooked_on_a_buffer(task, x):
    hidden = task.body(x)
    if hidden.requires_grad:
        hidden.register_hook(lambda g: g * task.count)
    return hidden


class ByHand(torch.autograd.Function):
    """A linear layer that keeps its module in place of its weight."""

    @staticmethod
    def forward(ctx, x, weight, module):
        ctx.module = module
        ctx.save_for_backward(x)
        return x @ weight.T

    @staticmethod
    def backward(ctx, g):
        return g @ ctx.module.weight, g.T @ ctx.saved_tensors[0], None


def multiplied_by_hand(task, x):
    return ByHand.apply(x.clone().requires_grad_(), task.body.weight, task.body)


class Late(FederatedLightningModule):
    """Reads in the backward pass what a function of the task and a batch says."""

    def __init__(self, hidden, oracle, since=0):
        super().__init__(FedAvg(0.05), oracle=oracle)
        self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 1)
        self.register_buffer("count", torch.ones(()))
        self.hidden, self.since = hidden, since

    def objective(self, batch):
        x, y = batch
        self.count += 0.5
        hidden = self.body(x) if self.global_step < self.since else self.hidden(self, x)
        return F.mse_loss(self.head(torch.tanh(hidden)).squeeze(1), y)


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(), None])
@pytest.mark.parametrize(
    ("hidden", "what"),
    [
        (checkpointed, "'body.(weight|bias)'"),
        (checkpointed_by_itself, "parameters"),
        (hooked_on_a_parameter, "'body.weight'"),
        (hooked_on_a_buffer, "'count'"),
    ],
)
def test_what_the_backward_pass_would_read_of_the_task_is_refused(hidden, what, oracle):
    with pytest.raises(ObjectiveError, match=f"reads {what} in the backward pass"):
        fitted(Late(hidden, oracle), max_steps=1)


@pytest.mark.parametrize(
    "oracle", [Sequential(), Vectorized(), Vectorized(replay=False), Vectorized(backward="each"), None]
)
@pytest.mark.parametrize(
    "hidden", [checkpointed, checkpointed_by_itself, hooked_on_a_parameter, hooked_on_a_buffer, multiplied_by_hand]
)
def test_so_is_what_it_begins_to_read_in_a_later_round(hidden, oracle):
    data = regression_data(local_steps=25)
    data.rounds_per_epoch = 1
    with pytest.raises(ObjectiveError, match=r"reads ('(body\.weight|body\.bias|count)'|parameters) in the"):
        fitted(Late(hidden, oracle, since=2), data, max_steps=4)


def doubled(task, x):
    hidden = task.body(x)
    return 2 * hidden - hidden.detach()


def doubled_by_a_hook(task, x):
    hidden = task.body(x)
    weight = task.body.weight
    if hidden.requires_grad:
        hidden.register_hook(lambda g: g * (2 if _is_trained(task.body, weight) else 1))
    return hidden


def _is_trained(layer, seen):
    """What a layer says of its weight where numbers do not matter."""
    weight = layer.weight
    return (
        isinstance(weight, nn.Parameter)
        and weight.requires_grad
        and weight.grad is None
        and weight.is_leaf
        and not weight.is_cuda
        and weight.stride() == seen.stride()
    )


@pytest.mark.parametrize(
    "oracle", [Sequential(), Vectorized(replay=False), Vectorized(), Vectorized(backward="vmap"), None]
)
def test_what_it_reads_of_a_parameter_but_its_numbers_is_the_parameters(oracle):
    ends = []
    for hidden in (doubled, doubled_by_a_hook):
        torch.manual_seed(0)
        task = Late(hidden, oracle)
        fitted(task, max_steps=3)
        ends.append(torch.cat([parameter.detach().flatten() for parameter in task.parameters()]))
    torch.testing.assert_close(*ends)


class LatePersonal(Late):
    personal_parameters = ("body",)


@pytest.mark.parametrize("hidden", [checkpointed, checkpointed_by_itself, hooked_on_a_parameter])
def test_so_is_what_it_would_read_of_the_personal_part(hidden):
    with pytest.raises(ObjectiveError, match=r"reads ('body.(weight|bias)'|parameters) in the backward pass"):
        fitted(LatePersonal(hidden, None), max_steps=1)


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(), Vectorized(replay=False)])
@pytest.mark.parametrize("follow", [replaced, moved])
def test_writes_past_autograd_that_begin_late_are_refused(follow, oracle):
    data = regression_data(local_steps=25)
    data.rounds_per_epoch = 1
    with pytest.raises(RuntimeError, match="begun to write into the frozen parameter 'teacher"):
        fitted(Teacher(follow, since=2, oracle=oracle), data, max_steps=4)


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
