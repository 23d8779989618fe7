"""A replay does what the function would have done."""

from __future__ import annotations

import gc
import re
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedlightning.oracle import Vectorized
from fedlightning.oracle.recording.program import LARGE_BYTES, Program
from fedlightning.oracle.recording.recording import Recording as WithConstant
from tests.support.cohorts import setting


class Recording(WithConstant):
    """Of a function that returns tensors alone."""

    def __init__(self, function):
        super().__init__(lambda *inputs: (function(*inputs), None))

    def __call__(self, *inputs):
        return super().__call__(*inputs)[0]


def conjugates(x):
    z = torch.complex(x, x + 1)
    return [(z * z.conj()).real.sum()[None], (z * z).conj().imag.neg()]


def negates_lazily(x):
    return [torch.complex(x, 2 * x).conj().imag * 3]


def adds_to_a_new_tensor(x):
    s = torch.tensor(0.0)
    s += 1.0
    return [x + s]


def adds_to_a_slice_of_a_new_tensor(x):
    s = torch.tensor([1.0, 2.0])
    s[1:].mul_(3).add_(1)
    return [x * s]


def writes_into_numpy(x):
    s = torch.from_numpy(np.array([1.0, 2.0], dtype=np.float32))
    s *= 0.9
    return [x * s]


def converts_a_list(x):
    return [x * torch.as_tensor([1.0, 3.0]).mul_(0.3).sin_()]


class Own(torch.Tensor):
    """Its results are wrapped in its class, which no operation shows."""


HELD = torch.tensor([2.0, 3.0])
OWN = HELD.as_subclass(Own)


def has_a_class_of_its_own(x):
    return [((x.sin() * OWN) * 2).as_subclass(torch.Tensor)]


def takes_a_hessian(x):
    return [torch.func.hessian(lambda z: (z * HELD).sin().prod())(x)]


def wraps_and_unwraps(x):
    return [x.as_subclass(Own).as_subclass(torch.Tensor) * 2]


def wraps_and_unwraps_a_result(x):
    return [x.sin().as_subclass(Own).as_subclass(torch.Tensor) * x]


def takes_data_of_an_input(x):
    return [x.data * 2]


def takes_data_of_a_result(x):
    return [(x.sin() + 1).data * x]


def reads_a_value(x):
    return [x * float(torch.ones(()))]


def reads_the_input(x):
    return [x * 2 if x.sum().item() > 0 else x * 3]


def fills_an_empty_tensor(x):
    result = torch.empty(0)
    torch.mul(x, 2, out=result)
    return [x + 1, result]


def scatters_into_zeros(x):
    z = torch.zeros(2)
    z[1:] = x[1:]
    return [z * 2, torch.zeros_like(x).index_add_(0, torch.tensor([1, 1]), x)]


def writes_through_views_of_constants(x):
    ones, numbers = torch.ones_like(x), torch.arange(2.0).view(2, 1).expand(2, 3).clone()
    ones.view(2, 1).mul_(x[:, None])
    numbers.t()[0].add_(x)
    return [ones, numbers.sum(1)]


def reads_a_constant_before_it_changes(x):
    ones = torch.ones(2)
    before = x * ones
    ones.add_(1)
    return [before, x * ones]


def returns_constants(x):
    ones = torch.ones_like(x)
    return [ones, ones / 2, x + ones / 4]


def joins_constants(x):
    return [torch.cat([torch.zeros(1), x, torch.full((2,), 3.0).sqrt()])]


def multiplies_by_many(x):
    return [x * torch.full((100, 100, 2), 0.5).cumsum(0)]


def has_a_constant_gradient(x):
    with torch.enable_grad():
        z = x.detach().requires_grad_()
        (g,) = torch.autograd.grad((z * HELD).mean() + z.square().mean(), z)
    return [g]


def keeps_fresh_statistics(x):
    mean, var = torch.zeros(1), torch.ones(1)
    z = F.batch_norm(x[:, None], mean, var, training=True)
    return [z[:, 0] + mean, var * x]


FUNCTIONS = [
    keeps_fresh_statistics,
    scatters_into_zeros,
    writes_through_views_of_constants,
    reads_a_constant_before_it_changes,
    returns_constants,
    joins_constants,
    multiplies_by_many,
    has_a_constant_gradient,
    conjugates,
    fills_an_empty_tensor,
    negates_lazily,
    adds_to_a_new_tensor,
    adds_to_a_slice_of_a_new_tensor,
    writes_into_numpy,
    converts_a_list,
    has_a_class_of_its_own,
    takes_a_hessian,
    wraps_and_unwraps,
    wraps_and_unwraps_a_result,
    takes_data_of_an_input,
    takes_data_of_a_result,
    reads_a_value,
    reads_the_input,
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_call_is_a_call(function):
    recording, kept = Recording(function), []
    for k in range(4):
        x = torch.tensor([1.0, -2.0]) * (k + 1) * (-1) ** k
        kept.append((recording(x), function(x)))
    for found, expected in kept:  # later calls leave the results of earlier ones alone
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def test_derivatives_inside_are_replayed():
    recording = Recording(takes_a_hessian)
    recording(torch.ones(2))
    assert recording.replays


def test_views_of_held_tensors_are_constants():
    held = torch.tensor([2.0, 3.0, 4.0])
    recording = Recording(lambda x: [x * held[1:].data * held.data[:2]])
    for k in (1.0, 5.0):
        assert recording(torch.full((2,), k))[0].tolist() == [6 * k, 12 * k]
    assert recording.replays


def test_a_tensor_held_elsewhere_goes_on_changing():
    """Whoever writes into one is called, not replayed: its next call finds other numbers."""
    memory = {"n": torch.zeros(2), "calls": 0}

    def function(x):
        memory["calls"] += 1
        memory["n"][:1] += x[:1]
        return [x + memory["n"]]

    recording = Recording(function)
    x = torch.ones(2)
    assert [recording(x)[0].tolist() for _ in range(3)] == [[2.0, 1.0], [3.0, 1.0], [4.0, 1.0]]
    assert memory["calls"] == 3


LARGE = LARGE_BYTES // 4


def joins_what_is_written_later(x):
    """One part is written into before it is joined, the other after that."""
    a, b = (x * 2).expand(LARGE, 2).clone(), (x + 1).expand(LARGE, 2).clone()
    a[:3].add_(5)
    whole = torch.cat([a, b, a[1:2]])
    b.zero_()
    return [whole]


def joins_and_goes_on(x):
    whole = torch.cat([(x * k).expand(LARGE // 8, 1, 2) for k in (1.0, 2.0)], dim=-1)
    whole[0].mul_(-1)
    return [whole, torch.cat([whole, whole + 1]).sum(0)]


def joins_two_dtypes(x):
    return [torch.cat([x.double().expand(LARGE, 2), x.expand(LARGE, 2)], 0)]


def joins_channels_last(x):
    """The result lies in memory as its parts do, which the following operations count on."""
    image = x[0] * torch.ones(1, 8, 4, LARGE // 64).contiguous(memory_format=torch.channels_last)
    whole = torch.cat([image, image + x[1]])
    return [torch.as_strided(whole, (8,), (1,)) * 2, whole.permute(0, 2, 3, 1).reshape(-1)]


def joins_what_nobody_reads(x):
    torch.cat([x.expand(LARGE, 2), x.expand(LARGE, 2)])
    return [x * 3]


JOINING = [
    joins_what_is_written_later,
    joins_and_goes_on,
    joins_two_dtypes,
    joins_channels_last,
    joins_what_nobody_reads,
]


@pytest.mark.parametrize("function", JOINING)
def test_large_joined_tensors_are_those_of_a_call(function):
    recording = Recording(function)
    for k in range(4):
        x = torch.tensor([1.0, -2.0]) * (k + 1)
        for one, other in zip(recording(x), function(x), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


def test_a_large_joined_result_is_put_into_the_room_given():
    recording = WithConstant(lambda x: ([torch.cat([x + 1, x * 2]), x.sum()], None))
    for k in range(3):
        x = torch.arange(LARGE, dtype=torch.float32) + k
        room = torch.empty(2 * LARGE)
        (found, total), _ = recording(x, room=room)
        assert (found is room) == (k > 0)  # the first call records
        assert torch.equal(found, torch.cat([x + 1, x * 2]))
        assert total == x.sum()


def test_parts_of_a_large_joined_tensor_are_released_one_by_one():
    alive = []
    made = []

    def noted(x):
        made.append(weakref.ref(x))
        alive.append(sum(ref() is not None for ref in made))
        return x

    program = Program(1)
    x = torch.ones(LARGE)
    parts = []
    for k in range(3):
        parts += [(x * k, *program.add(lambda x, k: noted(x * k), (x, k), {}, lambda _: "i0", x, acts=False))]
    whole = torch.cat([part for part, _ in parts])
    names = {id(part): name for part, name in parts}
    name = program.join([part for part, _ in parts], 0, lambda part: names[id(part)], whole)
    assert torch.equal(program.function([name])(x)[0], whole)
    assert alive == [1, 1, 1]


def test_what_can_be_replayed_is_not_called_again():
    calls = []
    recording = Recording(lambda x: calls.append(1) or [x.sin() + 1])
    for _ in range(3):
        recording(torch.ones(2))
    assert len(calls) == 1


def is_below_one(x):
    torch._assert_async((x < 1).all())
    return [x * 2]


def has_a_factor(x):
    return [torch.linalg.cholesky(x.diag()) * 1]  # PyTorch checks it by an operation that returns nothing


@torch.library.custom_op("fedlightning_checks::small", mutates_args=())
def small(x: torch.Tensor) -> torch.Tensor:
    if x.max() >= 1:
        raise ValueError("too large")
    return torch.zeros(1)


def is_small_by_an_operation_of_its_own(x):
    torch.ops.fedlightning_checks.small(-x)
    return [x * 2]


@pytest.mark.parametrize("function", [is_below_one, has_a_factor, is_small_by_an_operation_of_its_own])
def test_a_check_whose_result_nobody_reads_is_made_in_every_replay(function):
    good, bad = (torch.full((2,), number) for number in (0.5, 2.0 if function is is_below_one else -2.0))
    recording = Recording(function)
    for _ in range(2):
        recording(good)
    assert recording.is_replayed(good)
    with pytest.raises(Exception) as expected:  # noqa: PT011
        function(bad)
    with pytest.raises(type(expected.value), match=re.escape(str(expected.value))):
        recording(bad)
    assert torch.equal(recording(good)[0], function(good)[0])


def test_a_call_that_cannot_be_recorded_happens_once():
    """Its random numbers and whatever else it changes come once, not a second time after giving up."""
    calls = []

    def function(x):
        calls.append(1)
        noise = torch.rand(2)
        return [x + noise * float(torch.ones(()))]

    recording = Recording(function)
    torch.manual_seed(0)
    first = recording(torch.zeros(2))[0]
    torch.manual_seed(0)
    assert torch.equal(first, torch.rand(2))
    assert len(calls) == 1


def test_shapes_are_recorded_by_themselves():
    recording = Recording(lambda x: [x.sum() * len(x)])
    for n in (2, 3, 2, 3):
        assert recording(torch.ones(n))[0] == n * n


def test_one_tensor_in_two_places_is_recorded_by_itself():
    recording = Recording(lambda x, y: [x - 2 * y])
    one, other = torch.tensor([3.0]), torch.tensor([5.0])
    given = [(one, one), (one, other), (other, one), (other, other)] * 2
    assert [recording(*pair)[0].item() for pair in given] == [-3.0, -7.0, -1.0, -5.0] * 2
    assert recording.is_replayed(one, one)
    assert recording.is_replayed(one, other)


def test_what_is_the_same_in_every_call_comes_back_with_each():
    recording = WithConstant(lambda x: ([x + 1], f"shape {tuple(x.shape)}"))
    assert [recording(torch.ones(n))[1] for n in (2, 3, 2)] == ["shape (2,)", "shape (3,)", "shape (2,)"]


def test_comparisons_in_python_are_not_recorded():
    recording = Recording(lambda x: [x * 2 if torch.equal(x, torch.zeros(2)) else x * 3])
    assert [recording(torch.full((2,), k))[0][0].item() for k in (0.0, 1.0, 0.0)] == [0.0, 3.0, 0.0]


def test_a_recording_is_gone_with_its_last_reference():
    """No cycle of references keeps the tensors of a recorded step until the garbage collector comes by."""
    made = []

    def function(x):
        y = x + torch.ones(2)
        made.append(weakref.ref(y))
        return [(y * 2).sum()]

    gc.collect()
    gc.disable()
    try:
        recording = Recording(function)
        recording(torch.ones(2))
        recording(torch.ones(2))
        assert made[0]() is None
    finally:
        gc.enable()


def test_replay_draws_what_the_eager_call_would_draw():
    def loss(net, batch):
        return F.cross_entropy(net(F.dropout(batch[0], 0.3)), batch[1])

    objective, *arguments = setting(nn.Linear(6, 3), (6,), torch.float32, loss)
    results = []
    for oracle in (Vectorized(replay=False), Vectorized(replay=True)):
        evaluate = oracle.evaluator(objective, 100)
        evaluate(*arguments)
        torch.manual_seed(5)
        results.append(torch.stack([evaluate(*arguments).g for _ in range(3)]))
    assert torch.equal(*results)


def test_reading_a_value_in_python_is_not_recorded():
    scale = torch.tensor(2.0, dtype=torch.float64)

    def loss(net, batch):
        return net(batch[0]).sum() * scale.item()

    objective, *arguments = setting(nn.Linear(6, 3), (6,), loss=loss)
    evaluate = Vectorized(replay=True).evaluator(objective, 100)
    first = evaluate(*arguments).loss
    scale.fill_(4.0)
    torch.testing.assert_close(evaluate(*arguments).loss, 2 * first)
