"""Absent tensors report shape, dtype and whatever else holds no numbers; reading their numbers raises."""

from __future__ import annotations

from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedlightning.oracle.effects.absent import Absence, Absent, attributes

X = torch.ones(2, 3)


def refuse(name="it"):
    return LookupError(f"{name} is absent")


class Passes(TorchFunctionMode):
    """Hands everything on, as the modes do in which evaluations run."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def test_it_tells_what_the_tensor_would_be():
    absent = Absent.of(X.double(), refuse)
    assert (absent.shape, absent.dtype, absent.device.type, absent.ndim) == ((2, 3), torch.float64, "cpu", 2)
    assert (len(absent), absent.size(1), absent.numel(), absent.dim()) == (2, 3, 6, 2)
    assert (absent.stride(), absent.is_contiguous(), absent.is_cuda, absent.is_leaf) == ((3, 1), True, False, True)
    assert (absent.grad, absent.is_floating_point(), torch.is_complex(absent)) == (None, True, False)
    assert repr(absent) == "Absent(shape=(2, 3), dtype=torch.float64)"
    assert isinstance(absent, torch.Tensor)
    assert not isinstance(absent, nn.Parameter)
    assert deepcopy({"copied": absent})["copied"] is absent


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_parameter_is_one(requires_grad):
    absent = Absent.of(nn.Parameter(X.T, requires_grad=requires_grad), refuse)
    assert isinstance(absent, nn.Parameter)
    assert absent.requires_grad is requires_grad
    assert absent.stride() == (1, 3)


@pytest.mark.parametrize(
    "use",
    [
        lambda absent: absent + 1,
        lambda absent: X + absent,
        lambda absent: 2 * absent,
        lambda absent: F.linear(X, absent),
        lambda absent: F.mse_loss(torch.ones(5), absent),
        lambda absent: torch.cat([X, absent]),
        lambda absent: torch.einsum("ij,ij->i", X, absent),
        lambda absent: torch.where(X > 0, X, other=absent),
        lambda absent: torch.ops.aten.add.Tensor(X, absent),
        lambda absent: absent.detach(),
        lambda absent: absent.data,
        lambda absent: absent.T,
        lambda absent: absent[0],
        lambda absent: absent.add_(1),
        lambda absent: absent.copy_(X),
        lambda absent: X.clone().copy_(absent),
        lambda absent: absent.numpy(),
        lambda absent: absent.tolist(),
        lambda absent: float(absent[0, 0]),
        lambda absent: torch.func.vmap(lambda x: x + absent)(torch.ones(4, 2, 3)),
        lambda absent: torch.func.grad(lambda x: (x * absent).sum())(X),
    ],
)
@pytest.mark.parametrize("mode", [nullcontext, Passes])
def test_its_numbers_are_refused(use, mode):
    absent = Absent.of(X, refuse)
    with mode(), pytest.raises(LookupError, match="it is absent"):
        use(absent)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.first.bias.requires_grad_(False)
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("scale", torch.ones(1))


def named(task):
    return {**dict(task.named_parameters(remove_duplicate=False)), **dict(task.named_buffers())}


def test_trained_parameters_under_all_their_names_and_named_buffers_are_taken_away():
    task = Tied()
    before = named(task)
    with Absence.of_trained(task, ["count"], refuse)():
        taken = {name for name, tensor in named(task).items() if isinstance(tensor, Absent)}
        with pytest.raises(LookupError, match=r"second\.weight is absent"):
            task.second(X)
    assert taken == {"first.weight", "second.weight", "second.bias", "count"}
    assert all(tensor is before[name] for name, tensor in named(task).items())


def test_an_error_puts_everything_back():
    task = Tied()
    before = named(task)
    with pytest.raises(KeyError), Absence.of_trained(task, ["count"], refuse)():
        raise KeyError
    assert all(tensor is before[name] for name, tensor in named(task).items())


class Interrupted(dict):
    """Raises an interrupt the first time that a value is put back."""

    times = 0

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.times += 1
        if self.times == 3:
            raise KeyboardInterrupt


def test_an_interrupt_while_tensors_are_put_back_loses_none():
    held = Interrupted(a=X, b=2 * X)
    absence = Absence([(held, name, Absent.of(X, refuse)) for name in ("a", "b")])
    with pytest.raises(KeyboardInterrupt), absence():
        pass
    assert torch.equal(held["a"], X)
    assert torch.equal(held["b"], 2 * X)


def test_attributes_are_taken_away_until_they_are_written():
    task = Tied()
    task.first.seen, task.count_of_calls, task.empty = X, 3, None
    names = ["self.first.seen", "self.new", "self.empty", "self.count_of_calls", "self.gone.seen", "global k"]
    absence = Absence.of_attributes(task, names, refuse)
    with absence():
        assert task.count_of_calls == 3
        for read, name in ((lambda: task.first.seen, "first.seen"), (lambda: task.new, "new")):
            with pytest.raises(LookupError, match=f"self.{name} is absent"):
                read().sum()
        task.first.seen = 2 * X
        assert task.empty is not None
    assert torch.equal(task.first.seen, 2 * X)
    assert task.empty is None
    assert "self.new" not in attributes(task)
    assert attributes(task)["self.first.seen"] is task.first.seen
