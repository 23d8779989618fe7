"""A step taken in place ends where a gradient and a subtraction end, at the same bits unless a product is fused."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.algorithms import SCAFFOLD, FedAvg, FedAvgGDA
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.base import Evaluation
from fedlightning.oracle.errors import BatchedError
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.oracle.randomness import ClientNoise, Randomness
from fedlightning.oracle.recording import side_by_side, waiting
from fedlightning.oracle.recording.recorded import Recorded
from tests.support.cohorts import (
    NETS,
    Swapping,
    a_right_and_a_wrong_step,
    classify,
    conv,
    logs_a_weight,
    setting,
    stepped,
    turns_of,
)
from tests.support.small import Line, Normed, Personal, fitted, regression_data


class Saddle(Line):
    max_parameters = ("head",)


WAYS = {
    "together": Vectorized(),
    "in parts": Vectorized(parts=2),
    "each": Vectorized(backward="each", threads=1),
    "side by side": Vectorized(backward="each", threads=2),
    "one by one": Sequential(),
}


def wide(tensor):
    return tensor.repeat(2, *[1] * (tensor.dim() - 1))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bits_are_those_of_gradient_and_subtraction(name, way, dtype):
    make, shape = NETS[name]
    objective, w, v, b, data = setting(make(), shape, dtype)
    objective.draws = False
    w, v, b, data = wide(w), wide(v), wide(b), tuple(map(wide, data))
    evaluate = WAYS[way].evaluator(objective, 100)
    seeds = Randomness(range(len(w)), 0)
    for _ in range(2):
        evaluate(w, v, b, data, "both", seeds)
    expected = evaluate(w, v, b, data, "both", seeds)
    point = w.clone()
    result = stepped(evaluate, point, v, b, data, "both", seeds, 0.3)
    assert result.g is point
    assert torch.equal(point, w.clone().sub_(expected.g, alpha=0.3))
    assert not torch.equal(point, w)
    assert torch.equal(result.loss, expected.loss)
    assert torch.equal(result.buffers, expected.buffers)


def test_steps_go_on_whatever_changes_between_them():
    """From one point with one size on minibatches of one kind, then with another of each."""
    objective, w, v, b, data = setting(conv(), (2, 8, 8))
    objective.draws = False
    fewer = tuple(leaf[:, :2].contiguous() for leaf in data)
    evaluate = Vectorized().evaluator(objective, 100)
    for each in (data, fewer):
        evaluate(w, v, b, each)
    one, other = w.clone(), w + 0.1
    turns = [(one, 0.3, data), (one, 0.3, data), (one, 0.1, data), (one, 0.1, fewer), (one, 0.1, fewer)]
    turns += [(other, 0.1, fewer), (one, 0.1, fewer), (other, 0.1, data), (other.clone(), 0.1, data)]
    for point, lr, batch in turns:
        expected = evaluate(point, v, b, batch)
        expected_point = point.clone().sub_(expected.g, alpha=lr)
        result = stepped(evaluate, point, v, b, batch, "both", None, lr)
        assert torch.equal(point, expected_point)
        assert torch.equal(result.loss, expected.loss)


def test_steps_follow_a_point_to_other_memory():
    objective, w, v, b, data = setting(conv(), (2, 8, 8))
    objective.draws = False
    evaluate, point = Vectorized().evaluator(objective, 100), w.clone()
    for _ in range(2):
        evaluate(w, v, b, data)
    stepped(evaluate, point, v, b, data, "both", None, 0.3)
    point.data = w + 0.1
    expected_point = point.clone().sub_(evaluate(point, v, b, data).g, alpha=0.3)
    stepped(evaluate, point, v, b, data, "both", None, 0.3)
    assert torch.equal(point, expected_point)


def test_nothing_is_stepped_before_it_was_recorded():
    objective, w, v, b, data = setting(conv(), (2, 8, 8))
    evaluate, before = Vectorized().evaluator(objective, 100), w.clone()
    assert stepped(evaluate, w, v, b, data, "both", None, 0.3) is None
    assert torch.equal(w, before)


class Sandwiched(nn.Module):
    """A large matrix between two others, each of which its gradient is made of."""

    def __init__(self):
        super().__init__()
        self.before = nn.Parameter(torch.randn(150, 4) / 12)
        self.weight = nn.Parameter(torch.randn(150, 120) / 12)
        self.after = nn.Parameter(torch.randn(4, 120) / 12)

    def forward(self, x):
        return x.mean() * ((self.before.mT @ self.weight) * self.after).sum()


class Heads(nn.Module):
    """Its weight's gradient is a matrix for each of four heads."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 150, 120) / 12)
        self.last = nn.Linear(120, 3)

    def forward(self, x):
        return self.last(torch.tanh(x @ self.weight).mean(0))


class Turned(nn.Module):
    """Its gradient reads a view of a constant."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(150, 120), nn.Linear(120, 3)

    def forward(self, x):
        return self.last((0.1j * self.first(x)).exp().real)


class Products(TorchDispatchMode):
    """Counts the products that are added to a matrix while they are computed."""

    found = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.found += func in (torch.ops.aten.addmm_.default, torch.ops.aten.baddbmm_.default)
        return func(*args, **(kwargs or {}))


def few_pixels():
    return nn.Sequential(nn.Conv2d(160, 960, 1, stride=2), nn.Flatten(), nn.Linear(3840, 3, bias=False))


FUSED = {
    "large": (lambda: nn.Sequential(nn.Linear(150, 120), nn.Tanh(), nn.Linear(120, 3)), (150,), classify, (1, 1)),
    "no bias": (lambda: nn.Sequential(nn.Linear(150, 120, bias=False), nn.Linear(120, 3)), (150,), classify, (1, 1)),
    "twice": (lambda: nn.Sequential(*[nn.Linear(130, 130)] * 2, nn.Linear(130, 3)), (130,), classify, (0, 0)),
    "small": (lambda: nn.Sequential(nn.Linear(100, 120), nn.Linear(120, 3)), (100,), classify, (0, 0)),
    "view of a constant": (Turned, (150,), classify, (1, 1)),
    "heads": (Heads, (150,), classify, (0, 1)),
    "of few pixels": (few_pixels, (160, 3, 3), classify, (0, 1)),
    "of other parameters": (Sandwiched, (2,), lambda net, batch: net(batch[0]), (0, 0)),
}
"""Networks, shapes of inputs, losses, and how many products are subtracted while they are computed: of all clients
together, and of each. All heads of one client are one product, and so is its convolution of few pixels."""


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FUSED)
def test_large_products_are_subtracted_while_they_are_computed(name, way):
    """Not if anything else is made of them, nor if they are products of other parameters."""
    make, shape, loss, (together, each) = FUSED[name]
    objective, w, v, b, data = setting(make(), shape, loss=loss)
    objective.draws = False
    w, v, b, data = wide(w), wide(v), wide(b), tuple(map(wide, data))
    evaluate = WAYS[way].evaluator(objective, 100)
    for _ in range(2):
        expected = evaluate(w, v, b, data)
    point = w.clone()
    with Products() as counted:
        result = stepped(evaluate, point, v, b, data, "both", None, 0.3)
    torch.testing.assert_close(point, w - 0.3 * expected.g, rtol=1e-13, atol=1e-14)
    assert torch.equal(result.loss, expected.loss)
    if way == "together":  # other threads' operations are not seen
        assert counted.found == together
    elif way == "each":
        assert counted.found == each * len(w)


@pytest.mark.parametrize(("clients", "width", "products"), [(1, 120, 0), (1, 2000, 1), (2, 120, 1), (2, 2000, 1)])
def test_several_threads_wait_for_each_other_in_smaller_products_of_one_client(clients, width, products, two_threads):
    net = nn.Sequential(nn.Linear(150, width), nn.Tanh(), nn.Linear(width, 3))
    objective, w, v, b, data = setting(net, (150,))
    objective.draws = False
    w, v, b, data = w[:clients], v[:clients], b[:clients], tuple(leaf[:clients] for leaf in data)
    evaluate = Vectorized().evaluator(objective, 100)
    plain = w.clone()
    for _ in range(3):
        plain -= 0.3 * evaluate(plain, v, b, data).g
    point = w.clone()
    with Products() as counted, evaluate.steps_in_place(point, v, "both", 0.3) as step:
        for _ in range(3):
            step(b, data, None)
    assert counted.found == 3 * products
    torch.testing.assert_close(point, plain, rtol=1e-12, atol=1e-13)


def in_parts(net, shape, **options):
    """A replayed oracle of six clients in two parts, and what steps are taken on."""
    objective, w, v, b, data = setting(net, shape, torch.float64, **options)
    objective.draws = False
    w, v, b, data = wide(w), wide(v), wide(b), tuple(map(wide, data))
    evaluate = Vectorized(parts=2).evaluator(objective, 100)
    return evaluate, objective, w, v, b, data


@pytest.fixture
def turns(monkeypatch):
    """Numbers of parts and threads of all turns in which something is computed."""
    return turns_of(side_by_side, monkeypatch)


@pytest.mark.parametrize(("name", "count"), [("conv", 3), ("batch-norm", 20)])
def test_parts_take_steps_in_a_row_unless_their_buffers_are_read_between(name, count, turns):
    """The first of their kind at once, and then sixteen together."""
    make, shape = NETS[name]
    evaluate, objective, w, v, b, (x, y) = in_parts(make(), shape)
    evaluate(w, v, b, (x, y))
    plain, turns[:] = Sequential().evaluator(objective, 1), []
    point, shared, buffers, losses, expected = w.clone(), torch.empty_like(x), b, [], []
    with evaluate.steps_in_place(point, v, "both", 0.1) as step:
        for k in range(20):
            torch.mul(x, k, out=shared)  # as a transform that uses its memory again
            found, same = step(b, (shared, y), None), plain(w, v, buffers, (shared, y))
            b, buffers, w = found.buffers, same.buffers, w - 0.1 * same.g
            losses.append(found.loss)
            expected.append(same.loss)
    assert turns == [(2, 2)] * count
    torch.testing.assert_close(point, w)
    torch.testing.assert_close(torch.stack(losses), torch.stack(expected))
    torch.testing.assert_close(b, buffers)


def test_parts_wait_for_no_step_whose_samples_share_memory_or_do_not_lie_densely(turns):
    evaluate, objective, w, v, b, (x, y) = in_parts(conv(), (2, 8, 8))
    plain, scattered = Sequential().evaluator(objective, 1), torch.stack([x, x], -1)[..., 0]
    evaluate(w, v, b, (scattered, y))
    point, turns[:] = w.clone(), []
    with evaluate.steps_in_place(point, v, "both", 0.1) as step:
        for k in range(3):
            assert step(b, (scattered, y), None) is not None
            assert len(turns) == k + 1
            w = w - 0.1 * plain(w, v, b, (x, y)).g
    torch.testing.assert_close(point, w)


def test_few_steps_of_parts_wait_if_their_samples_are_large(turns, monkeypatch):
    evaluate, _, w, v, b, (x, y) = in_parts(conv(), (2, 8, 8))
    evaluate(w, v, b, (x, y))
    monkeypatch.setattr(waiting, "MOST_WAITING_BYTES", 3 * x.nbytes)
    turns.clear()
    with evaluate.steps_in_place(w, v, "both", 0.1) as step:
        for _ in range(7):
            step(b, (x, y), None)
    assert len(turns) == 3, "the first, three and three"


def test_parts_go_on_when_minibatches_change_and_leave_the_rest_to_the_caller():
    evaluate, objective, w, v, b, (x, y) = in_parts(conv(), (2, 8, 8))
    plain, fewer, unknown = (
        Sequential().evaluator(objective, 1),
        (x[:, :2].clone(), y[:, :2].clone()),
        (x[:, :3], y[:, :3]),
    )
    for each in ((x, y), fewer):
        evaluate(w, v, b, each)
    point = w.clone()
    with evaluate.steps_in_place(point, v, "both", 0.1) as step:
        for batch in ((x, y), (x, y), fewer, fewer, (x, y), (x, y)):
            assert step(b, batch, None) is not None
            w = w - 0.1 * plain(w, v, b, batch).g
        assert step(b, unknown, None) is None
    torch.testing.assert_close(point, w)


def test_an_error_between_steps_of_parts_stays_as_it_is():
    evaluate, objective, w, v, b, data = in_parts(conv(), (2, 8, 8))
    evaluate(w, v, b, data)
    point = w.clone()

    def take_steps():
        with evaluate.steps_in_place(point, v, "both", 0.1) as step:
            for _ in range(3):
                step(b, data, None)
            raise LookupError("no more data")

    with pytest.raises(LookupError, match="no more data"):
        take_steps()
    w = w - 0.1 * Sequential().evaluator(objective, 1)(w, v, b, data).g
    torch.testing.assert_close(point, w, msg="nobody asks any more for steps that wait")


def test_what_fails_in_a_step_of_parts_that_has_waited_is_said():
    evaluate, _, w, v, b, (x, y) = in_parts(conv(), (2, 8, 8))
    evaluate(w, v, b, (x, y))
    with pytest.raises(BatchedError, match="Target 99 is out of bounds"):
        a_right_and_a_wrong_step(evaluate, w, v, b, (x, y))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_nothing_of_16_bits_is_stepped_in_parts(dtype):
    """Torch subtracts the last numbers of a row with a step size of 16 bits, all others with one of 32."""
    objective, w, v, b, data = setting(nn.Sequential(nn.Linear(6, 3)), (6,), dtype)
    objective.draws = False
    for way in ("together", "each", "one by one"):
        evaluate = WAYS[way].evaluator(objective, 100)
        for _ in range(2):
            evaluate(w, v, b, data)
        assert stepped(evaluate, w.clone(), v, b, data, "both", None, 0.3) is None


def test_a_logged_value_that_lies_in_the_point_is_not_stepped_in_place():
    objective, w, v, b, data = setting(conv(), (2, 8, 8), loss=logs_a_weight)
    for way in ({}, {"backward": "each", "threads": 1}):
        evaluate = Vectorized(**way).evaluator(objective, 100)
        for _ in range(2):
            evaluate(w, v, b, data)
        point = w.clone()
        assert stepped(evaluate, point, v, b, data, "both", None, 0.3) is None
        assert torch.equal(point, w)


def test_gradients_that_lie_in_the_point_are_not_stepped_in_place():
    """Otherwise the second weight would move along the first one's new value."""
    objective, w, v, b, data = setting(Swapping(), (2,), loss=lambda net, batch: net(batch[0]))
    evaluate = Vectorized(backward="each", threads=1).evaluator(objective, 100)
    for _ in range(2):
        g = evaluate(w, v, b, data).g
    assert torch.equal(g, w.flip(1)[:, [2, 1, 0, 5, 4, 3]])
    point = w.clone()
    assert stepped(evaluate, point, v, b, data, "both", None, 0.3) is None
    assert torch.equal(point, w)


@pytest.mark.parametrize(
    "make",
    [
        lambda **how: Line(FedAvg(0.05), dropout=0.0, **how),
        lambda **how: Line(FedAvg(0.05), **how),
        lambda **how: Saddle(FedAvgGDA(0.001), dropout=0.0, **how),
        lambda **how: Line(SCAFFOLD(0.05), dropout=0.0, **how),
        Normed,
        Personal,
    ],
    ids=["plain", "draws", "minimax", "with directions", "buffers", "personal"],
)
@pytest.mark.parametrize("way", WAYS)
def test_a_fit_is_the_same_bit_for_bit(make, way, monkeypatch):
    tasks = []
    for _ in range(2):
        torch.manual_seed(0)
        tasks.append(make(oracle=WAYS[way]))
        fitted(tasks[-1], regression_data(local_steps=25), limit_val_batches=0, max_steps=3)
        monkeypatch.setattr(GradientOracle, "steps_in_place", lambda self, w, v, batches, lr: next(batches, None))
    for name, value in tasks[1].state_dict().items():
        assert torch.equal(value, tasks[0].state_dict()[name]), name


@pytest.mark.parametrize("make", [Line, lambda **how: Saddle(FedAvgGDA(0.001), **how)], ids=["min", "minimax"])
def test_plain_steps_are_taken_in_place_after_the_first(make, monkeypatch):
    taken = []
    evaluated, in_place = GradientOracle.shared_gradient, GradientOracle.steps_in_place

    def steps_in_place(self, w, v, batches, lr):
        return in_place(self, w, v, (taken.append("in place") or batch for batch in batches), lr)

    def shared_gradient(self, *args):
        taken[-1] = "plain"
        return evaluated(self, *args)

    monkeypatch.setattr(GradientOracle, "steps_in_place", steps_in_place)
    monkeypatch.setattr(GradientOracle, "shared_gradient", shared_gradient)
    task = make(dropout=0.0, oracle=Vectorized(), self_check="off")
    fitted(task, regression_data(local_steps=5), max_steps=1, limit_val_batches=0)
    assert taken == ["plain"] + ["in place"] * 4


def test_a_round_leaves_nothing_for_the_collector():
    """Python's collector of cycles comes late, and on a GPU every round would leave a graph for it."""

    def compute(w, v, b, data, blocks):
        return Evaluation(w * data, v.new_empty(len(w), 0), b, w.sum(1))

    _, w, v, b, _ = setting(nn.Linear(6, 3), (6,))
    recorded = Recorded(compute, ClientNoise(), 1)
    for _ in range(2):
        assert torch.equal(recorded(w, v, b, torch.ones_like(w)).g, w)
    gone = weakref.ref(recorded)
    gc.disable()
    try:
        del recorded
        assert gone() is None
    finally:
        gc.enable()
