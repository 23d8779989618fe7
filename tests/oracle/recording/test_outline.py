"""Outlines are equal exactly where a replay of one call would serve another."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.oracle.recording.names import LARGE
from fedlightning.oracle.recording.outline import Draft


class Watched(TorchDispatchMode):
    def __init__(self, draft):
        super().__init__()
        self.draft = draft

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        self.draft.note(func, args, kwargs or {}, output)
        return output


def outline(function, *inputs):
    draft = Draft(inputs)
    with Watched(draft):
        results = function(*inputs)
    return draft.finished(results)


X, Y = torch.arange(6.0).reshape(2, 3), torch.ones(2, 3)
HELD = torch.full((2, 3), 2.0)


def branches(x, y):
    """Operations of every kind: views, sequences of tensors, writes, keywords, gradients."""
    a, b = x.split([1, 2], 1)
    z = torch.cat([b * HELD[:, :2], a], 1).add_(y, alpha=2)
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(z.softmax(1).square().sum(), z)
    return [gradient, torch.var_mean(z, dim=1, correction=0)[0]]


def test_two_calls_with_other_numbers_are_alike():
    assert outline(branches, X, Y) == outline(branches, X * 3, Y - 7)


def power(exponent):
    return lambda x, y: [x.pow(exponent) + y]


def filled(value):
    return lambda x, y: [x + torch.full((3,), value)]


def resized(x, y):
    return [x * HELD[:, :2].sum(1, keepdim=True) + y]


def held(tensor):
    return lambda x, y: [x * tensor + y]


DIFFERENT = {
    "another number": (power(2.0), power(2.5)),
    "an integer for a float": (power(3), power(3.0)),
    "the sign of zero": (filled(0.0), filled(-0.0)),
    "the sign of a complex zero": (filled(complex(0.0, 1.0)), filled(complex(-0.0, 1.0))),
    "another operation": (lambda x, y: [x + y], lambda x, y: [x - y]),
    "another order": (lambda x, y: [x - y], lambda x, y: [y - x]),
    "another keyword": (lambda x, y: [x.add(y, alpha=2)], lambda x, y: [x.add(y, alpha=3)]),
    "another dtype": (lambda x, y: [x.to(torch.float64)], lambda x, y: [x.to(torch.float16)]),
    "one operation more": (lambda x, y: [x + y], lambda x, y: [(x + y) * 1]),
    "another result": (lambda x, y: [x + 1, y + 1], lambda x, y: [y + 1, x + 1]),
    "a result more": (lambda x, y: [x + 1], lambda x, y: [x + 1, x]),
    "an earlier result": (lambda x, y: [(x + 1) * (x + 1)], lambda x, y: [(a := x + 1) * (a, x + 1)[0]]),
    "a tensor of equal numbers": (held(HELD), held(HELD.clone())),
    "a view of it": (held(HELD), held(HELD[:])),
    "what autograd sees": (lambda x, y: [x + y], torch.no_grad()(lambda x, y: [x + y])),
    "an input that is also held": (held(Y), held(HELD)),
    "another part of a sequence": (lambda x, y: [x.split(1)[0]], lambda x, y: [x.split(1)[1]]),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_what_differs_is_told_apart(one, other):
    first, second, again = outline(one, X, Y), outline(other, X, Y), outline(one, X + 1, Y)
    assert first != second
    assert first == again


def test_a_result_written_into_is_another_tensor_from_then_on():
    def late(x, y):
        z = x + 0
        w = z * 2
        z.add_(1)
        return [w]

    def early(x, y):
        z = x + 0
        z.add_(1)
        return [z * 2]

    assert outline(late, X, Y) != outline(early, X, Y)
    assert outline(early, X, Y) == outline(early, Y, X)


OTHERS = {
    "shape": torch.ones(1, 9),
    "strides": torch.ones(3, 3).t(),
    "place": torch.ones(12)[3:].view(3, 3),
    "dtype": torch.ones(3, 3, dtype=torch.float64),
    "lazy conjugate": torch.complex(torch.ones(3, 3), torch.ones(3, 3)).conj(),
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_held_tensor_that_lies_otherwise_is_another(other):
    start = torch.ones(3, 3, dtype=other.dtype if other.is_complex() else None)
    held = nn.Parameter(start, requires_grad=False)
    draft, moved = Draft([]), Draft([])
    draft.note("sum", [held], {}, X)
    held.data = other
    moved.note("sum", [held], {}, X)
    assert draft.finished([]) != moved.finished([])


class Opaque:
    """Stands for an argument of a library's own, which cannot be compared."""

    def __eq__(self, other):
        raise NotImplementedError

    __hash__ = None


def noted(*args, **kwargs):
    draft = Draft([])
    draft.note("operation", args, kwargs, None)
    return draft.finished([])


def test_arguments_that_cannot_be_compared_are_told_by_their_identity():
    one = Opaque()
    assert noted(one) == noted(one)
    assert noted(one) != noted(Opaque())
    assert noted([1, one]) != noted([1, Opaque()])


def test_a_truth_is_no_number():
    assert noted(1) != noted(True)
    assert noted(0) != noted(False)


def test_names_of_arguments_count():
    assert noted(dim=1) != noted(keepdim=1)
    assert noted(dim=1) == noted(dim=1)


def test_ids_of_freed_tensors_are_never_taken_for_held_ones():
    """A tensor made outside operations, as from NumPy, is a new one in every call."""
    first = outline(lambda x, y: [x * torch.from_numpy(HELD.numpy().copy())], X, Y)
    for _ in range(20):
        assert outline(lambda x, y: [x * torch.from_numpy(HELD.numpy().copy())], X, Y) != first


def test_an_outline_keeps_no_result_alive():
    made = []

    def function(x, y):
        z = x * y
        made.append(weakref.ref(z))
        return [z + 1]

    gc.collect()
    gc.disable()
    try:
        kept = outline(function, X, Y)
        assert made[0]() is None
        assert len(kept.operations) == 2
    finally:
        gc.enable()


def test_what_a_function_needs_no_longer_is_freed_while_it_is_drafted():
    gone = []

    def function(x, y):
        z = x.exp()
        before = StorageWeakRef(z.untyped_storage())
        z = z + y
        gone.append(before.expired())
        return [z]

    x, y = torch.ones(LARGE), torch.ones(LARGE)
    assert outline(function, x, y) == outline(function, x + 1, y)
    assert gone == [True, True]
