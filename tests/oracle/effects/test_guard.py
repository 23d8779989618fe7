"""What an objective keeps in Python, from the start or from a later round on, is kept as one by one."""

from __future__ import annotations

import ctypes
import mmap
import os
from array import array
from collections import ChainMap, Counter, OrderedDict, defaultdict
from functools import partial
from io import StringIO
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch
from torch import nn

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.oracle import ObjectiveError, Sequential, Vectorized
from tests.support.small import Line as Regression
from tests.support.small import clients, fitted, regression_data, trainer

LATE = 2


class Line(FederatedLightningModule):
    def __init__(self, **federation):
        super().__init__(FedAvg(0.05), **federation)
        self.line = nn.Linear(6, 1).double()
        self.start = None
        self.weight = torch.ones((), dtype=torch.float64)
        self.count = 0

    def error(self, batch):
        x, y = batch
        return (self.line(x).squeeze(1) - y).square().mean()


class NearItsStart(Line):
    """A copy of the weights at the first evaluation, equal wherever one looks at one point only."""

    def objective(self, batch):
        w = self.line.weight
        if self.start is None:
            self.start = w.detach().clone()
        return self.error(batch) + (w - self.start).square().sum()


class NearItsStartInADict(Line):
    def __init__(self, **federation):
        super().__init__(**federation)
        self.memo = {}

    def objective(self, batch):
        w = self.line.weight
        start = self.memo.setdefault("w", w.detach().clone())
        return self.error(batch) + (w - start).square().sum()


class LateAttribute(Line):
    """An attribute that is not there before the third round."""

    def objective(self, batch):
        loss = self.error(batch)
        if self.global_step >= LATE:
            self.late = 0.5 * getattr(self, "late", torch.ones(())) + 0.5 * loss.detach()
            loss = loss * self.late
        return loss


class LateDecay(Line):
    def objective(self, batch):
        if self.global_step >= LATE:
            self.weight = self.weight * 0.9
        return self.error(batch) * self.weight


class LateCounter(Line):
    def objective(self, batch):
        self.count += self.global_step >= LATE
        return self.error(batch) * (1 + 0.1 * self.count)


class LateNoise(Line):
    def objective(self, batch):
        return self.error(batch) * (1 + np.random.rand() if self.global_step >= LATE else 1.0)


class OwnGenerator(Line):
    """A generator of the task's own, from the start or from the third round on."""

    since = 0

    def __init__(self, **federation):
        super().__init__(**federation)
        self.noise = self.made()

    def made(self):
        return torch.Generator().manual_seed(0)

    def drawn(self):
        return float(torch.rand((), generator=self.noise))

    def objective(self, batch):
        return self.error(batch) * (1 + self.drawn() if self.global_step >= self.since else 1.0)


class LateGenerator(OwnGenerator):
    since = LATE


class OwnRandomState(OwnGenerator):
    def made(self):
        return np.random.RandomState(0)

    def drawn(self):
        return self.noise.rand()


class Layer(nn.Module):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return x * (1 + 0.01 * type(self).calls)


class CountsInALayersClass(Line):
    def __init__(self, **federation):
        super().__init__(**federation)
        self.layer = Layer()

    def objective(self, batch):
        return self.layer(self.error(batch))


def scaled(loss):
    scaled.calls += 1
    return loss * (1 + 0.01 * scaled.calls)


class CountsInAFunction(Line):
    def objective(self, batch):
        return scaled(self.error(batch))


def points(make, oracle, rounds=4, local_steps=5):
    torch.manual_seed(0)
    np.random.seed(0)
    Layer.calls = scaled.calls = 0
    task = make(oracle=oracle)
    data = FederatedDataModule.from_datasets(
        clients(), batch_size=4, local_steps=local_steps, seed=1, rounds_per_epoch=rounds
    )
    trainer(max_steps=rounds, precision="64-true").fit(task, data)
    return torch.cat([parameter.detach().flatten() for parameter in task.parameters()])


@pytest.mark.parametrize("oracle", [partial(Vectorized, chunk_size=3), lambda: None], ids=["batched", "default"])
@pytest.mark.parametrize(
    "make",
    [
        NearItsStart,
        NearItsStartInADict,
        LateAttribute,
        LateDecay,
        LateCounter,
        LateNoise,
        CountsInALayersClass,
        CountsInAFunction,
        OwnGenerator,
        LateGenerator,
        OwnRandomState,
    ],
)
def test_what_is_kept_in_python_counts_as_one_by_one(make, oracle):
    torch.testing.assert_close(points(make, oracle()), points(make, Sequential()), rtol=1e-12, atol=1e-12)


class Normed(Line):
    """The old weight norm, which writes the weight of its layer anew before every call."""

    def __init__(self, **federation):
        super().__init__(**federation)
        with pytest.warns(FutureWarning):
            self.line = nn.utils.weight_norm(self.line)

    def objective(self, batch):
        return self.error(batch)


class Lazy(Line):
    """Makes a constant in its first call."""

    weights = None

    def objective(self, batch):
        if self.weights is None:
            self.weights = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)
        return self.error((batch[0] * self.weights, batch[1]))


class LikeTheLast(Line):
    """Makes room in the shape of what it had left."""

    seen = None

    def objective(self, batch):
        self.seen = torch.zeros(4) if self.seen is None else torch.zeros_like(self.seen)
        self.seen = self.seen + self.line(batch[0]).detach().squeeze(1)
        return self.error(batch) + self.seen.square().mean()


class Forgets(Line):
    """Sums up in an attribute that it sets to zero at the end."""

    def __init__(self, **federation):
        super().__init__(**federation)
        self.seen = torch.zeros((), dtype=torch.float64)

    def objective(self, batch):
        self.seen = self.seen + self.error(batch)
        loss, self.seen = self.seen, torch.zeros_like(self.seen)
        return loss


@pytest.mark.parametrize("kind", [Normed, Lazy, LikeTheLast, Forgets])
def test_what_every_call_or_the_first_alone_writes_stays_batched(kind):
    task = kind(oracle=Vectorized(chunk_size=3))
    trainer(max_steps=3, precision="64-true").fit(
        task, FederatedDataModule.from_datasets(clients(), batch_size=4, local_steps=5, seed=1)
    )
    assert isinstance(task.run.simulation.runner.oracle_selection.oracle, Vectorized)
    torch.testing.assert_close(points(kind, Vectorized(chunk_size=3)), points(kind, Sequential()), rtol=1e-9, atol=1e-9)


class TwoNames(Line):
    """One buffer under two names."""

    def __init__(self, **federation):
        super().__init__(**federation)
        self.register_buffer("total", torch.zeros((), dtype=torch.float64))
        self.also = nn.Module()
        self.also.register_buffer("total", self.total)

    def objective(self, batch):
        self.total += 1
        return self.error(batch) * (1 + 0.1 * self.also.total)


class Remembers(Line):
    """Leaves its predictions in an attribute, and reads them there before it writes them, from a round on."""

    def __init__(self, start, **federation):
        super().__init__(**federation)
        if start != "missing":
            self.before = start

    def objective(self, batch):
        x, y = batch
        found = self.line(x).squeeze(1)
        far = (found - self.before).square().mean() if self.global_step >= LATE and self.before is not None else 0.0
        self.before = found.detach()
        return (found - y).square().mean() + far


@pytest.mark.parametrize("start", ["missing", None, torch.zeros(())])
@pytest.mark.parametrize(
    "oracle",
    [Vectorized(replay=False), Vectorized(replay=True), Vectorized(backward="vmap"), Vectorized(backward="each"), None],
)
def test_what_another_client_has_left_is_not_read(oracle, start):
    points(partial(Remembers, start), Sequential())
    with pytest.raises(ObjectiveError, match=r"begun to read self\.before before it writes it.*Sequential as oracle"):
        points(partial(Remembers, start), oracle)


def test_a_buffer_with_two_names_is_one_buffer():
    """Every step counts in both names: a plain loop over one client's steps says by how much."""
    task = TwoNames(oracle=Sequential(), buffers="local")
    data = FederatedDataModule.from_datasets(clients()[:1], batch_size=None, local_steps=3, rounds_per_epoch=2)
    torch.manual_seed(0)
    start = {name: p.detach().clone() for name, p in task.line.named_parameters()}
    (x, y) = (t.double() for t in clients()[0].tensors)
    trainer(max_steps=2, precision="64-true").fit(task, data)
    w, b = start["weight"], start["bias"]
    for step in range(1, 7):
        w, b = w.requires_grad_(), b.requires_grad_()
        loss = (nn.functional.linear(x, w, b).squeeze(1) - y).square().mean() * (1 + 0.1 * step)
        gradients = torch.autograd.grad(loss, (w, b))
        w, b = (value.detach() - 0.05 * gradient for value, gradient in zip((w, b), gradients, strict=True))
    torch.testing.assert_close(task.line.weight.detach(), w, rtol=1e-10, atol=1e-10)


class WritesFrozenLate(Line):
    def __init__(self, **federation):
        super().__init__(**federation)
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64), requires_grad=False)

    def objective(self, batch):
        if self.global_step >= LATE:
            with torch.no_grad():
                self.scale.mul_(0.9)
        return self.error(batch) * self.scale


def test_a_frozen_parameter_that_is_written_late_is_refused_by_name():
    with pytest.raises(ObjectiveError, match="begun to write into the frozen parameter 'scale'"):
        points(WritesFrozenLate, Vectorized(chunk_size=3))


class FailsElsewhere(Line):
    """Stays near its first point, and fails anywhere else: nobody asks for that point but the first look."""

    def __init__(self, **federation):
        super().__init__(**federation)
        self.sum = float(self.line.weight.detach().sum())

    def objective(self, batch):
        if self.global_step == 0 and abs(float(self.line.weight.detach().sum()) - self.sum) > 1e-6:
            raise AssertionError("not on the simplex")
        return self.error(batch)


def test_an_objective_that_fails_at_another_point_is_trained_nonetheless():
    task = FailsElsewhere(oracle=Sequential())
    data = FederatedDataModule.from_datasets(clients(), batch_size=4, local_steps=1, rounds_per_epoch=2)
    trainer(max_steps=2, precision="64-true").fit(task, data)
    assert task.global_step == 2


class Annealed(Regression):
    """Weighs a penalty by an object's count, from the second epoch on."""

    def __init__(self, oracle):
        super().__init__(FedAvg(0.02), dropout=0.0, oracle=oracle)
        self.schedule = Schedule()

    def objective(self, batch):
        loss = super().objective(batch)["loss"]
        weight = self.schedule.step() if self.current_epoch >= 1 else 0.0
        return {"loss": loss + weight * self.head.weight.square().sum()}


class Schedule:
    def __init__(self):
        self.calls = [[0]]

    def step(self):
        self.calls[0][0] += 1
        return min(1.0, self.calls[0][0] / 200)


@pytest.mark.parametrize("oracle", [Vectorized(), Vectorized(replay=False), None], ids=repr)
def test_an_object_that_begins_to_count_in_a_later_round_counts_every_client(oracle):
    ends = []
    for each in (Sequential(), oracle):
        torch.manual_seed(0)
        data = regression_data(local_steps=25)
        data.rounds_per_epoch = 1
        task = Annealed(each)
        fitted(task, data, max_steps=3, limit_val_batches=0)
        ends.append((task.head.weight.detach(), task.schedule.calls[0][0]))
    torch.testing.assert_close(ends[1][0], ends[0][0])
    assert ends[0][1] == ends[1][1] == 200


class LateNoise(Line):
    """Noise from a generator of its own, the same in every call, from the third round on."""

    def objective(self, batch):
        x, y = batch
        if self.global_step >= LATE:
            x = x + torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(3))
        return self.error((x, y))


class LateSeed(LateNoise):
    """The same, by a global seed."""

    def objective(self, batch):
        x, y = batch
        if self.global_step >= LATE:
            with torch.random.fork_rng():
                torch.manual_seed(3)
                x = x + torch.randn(x.shape, dtype=x.dtype)
        return self.error((x, y))


class LateHook(Line):
    """Halves the gradient of its input from the third round on."""

    def __init__(self, **federation):
        super().__init__(**federation)
        self.first = nn.Linear(6, 6).double()
        self.turn = nn.Identity()

    def objective(self, batch):
        x, y = batch
        if self.global_step >= LATE and not self.turn._backward_hooks:
            self.turn.register_full_backward_hook(lambda module, inputs, outputs: (0.5 * inputs[0],))
        return self.error((self.turn(self.first(x)), y))


@pytest.mark.parametrize("oracle", [Vectorized, lambda: None], ids=["batched", "default"])
@pytest.mark.parametrize("local_steps", [5, 25], ids=["as it comes", "replayed"])
@pytest.mark.parametrize("make", [LateNoise, LateSeed, LateHook])
def test_what_begins_in_a_later_round_goes_on_one_by_one(make, local_steps, oracle):
    found, expected = (points(make, each, local_steps=local_steps) for each in (oracle(), Sequential()))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


class MovesFrozenLate(WritesFrozenLate):
    """A teacher that follows, whose first write below vmap succeeds and whose second fails."""

    def objective(self, batch):
        if self.global_step >= LATE:
            with torch.no_grad():
                self.scale.mul_(0.9).add_(self.line.bias.detach().sum())
        return self.error(batch) * self.scale


@pytest.mark.parametrize("oracle", [Vectorized(chunk_size=3), Vectorized(backward="vmap"), Sequential()])
def test_a_failed_evaluation_that_has_written_into_a_frozen_parameter_is_refused(oracle):
    with pytest.raises(ObjectiveError, match="begun to write into the frozen parameter 'scale'"):
        points(MovesFrozenLate, oracle)


class WritesBufferLate(Line):
    def __init__(self, **federation):
        super().__init__(**federation)
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def objective(self, batch):
        if self.global_step >= LATE:
            self.calls += 1
        return self.error(batch)


@pytest.mark.parametrize("self_check", ["first", 1])
def test_a_buffer_that_is_written_late_is_refused_by_name(self_check):
    with pytest.raises(ObjectiveError, match="has begun to write into the buffer 'calls', which it left alone"):
        points(partial(WritesBufferLate, self_check=self_check), Vectorized())


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = nn.Parameter(torch.zeros(1, dtype=torch.float64), requires_grad=False)
        self.register_buffer("total", torch.zeros(1, dtype=torch.float64))


TOTAL = {"n": 0}
KINDS = {
    "a defaultdict": (lambda: defaultdict(float), lambda d: d.__setitem__("n", d["n"] + 1), lambda d: d["n"]),
    "a counter": (Counter, lambda d: d.update("n"), lambda d: d["n"]),
    "a list in a tuple": (lambda: ([0],), lambda d: d[0].__setitem__(0, d[0][0] + 1), lambda d: d[0][0]),
    "a tensor in a tuple": (lambda: (torch.zeros(1),), lambda d: d[0].add_(1), lambda d: d[0][0]),
    "a long list": (lambda: [0] * 10_001, lambda d: d.__setitem__(3, d[3] + 1), lambda d: d[3]),
    "a large array": (lambda: np.zeros(20_000), lambda d: d.__iadd__(1), lambda d: d[0]),
    "an array of Python's": (
        lambda: array("d", [0.0]),
        lambda d: d.__setitem__(0, d[0] + 1),
        lambda d: d[0],
    ),
    "bytes": (
        lambda: bytearray(2),
        lambda d: d.__setitem__(slice(None), (int.from_bytes(d, "big") + 1).to_bytes(2, "big")),
        lambda d: int.from_bytes(d, "big"),
    ),
    "one of many": (
        lambda: [[0] for _ in range(200)],
        lambda d: d[150].__setitem__(0, d[150][0] + 1),
        lambda d: d[150][0],
    ),
    "a parameter elsewhere": (lambda: [Module()], lambda d: d[0].count.data.add_(1), lambda d: d[0].count[0]),
    "a buffer elsewhere": (lambda: [Module()], lambda d: d[0].total.add_(1), lambda d: d[0].total[0]),
    "the order of a dict": (
        lambda: OrderedDict.fromkeys(range(10_000)),
        lambda d: d.move_to_end(next(iter(d))),
        lambda d: next(iter(d)),
    ),
    "a chain of dicts": (lambda: ChainMap({"n": 0}), lambda d: d.__setitem__("n", d["n"] + 1), lambda d: d["n"]),
    "a list behind a view": (
        lambda: MappingProxyType({"n": [0]}),
        lambda d: d["n"].__setitem__(0, d["n"][0] + 1),
        lambda d: d["n"][0],
    ),
    "a dict of weak keys": (
        lambda: WeakKeyDictionary({Module: 0}),
        lambda d: d.__setitem__(Module, d[Module] + 1),
        lambda d: d[Module],
    ),
    "an array of objects": (
        lambda: np.array([{"n": 0}, None], dtype=object),
        lambda d: d[0].__setitem__("n", d[0]["n"] + 1),
        lambda d: d[0]["n"],
    ),
    "an array of numbers that are objects": (
        lambda: np.array([0, None], dtype=object),
        lambda d: d.__setitem__(0, d[0] + 1),
        lambda d: d[0],
    ),
    "a memory map": (lambda: mmap.mmap(-1, 8), lambda d: d.__setitem__(3, d[3] + 1), lambda d: d[3]),
    "an array of ctypes": (lambda: (ctypes.c_int * 4)(), lambda d: d.__setitem__(3, d[3] + 1), lambda d: d[3]),
    "a file": (lambda: StringIO("0123456789" * 20), lambda d: d.read(1), StringIO.tell),
    "an object of the class": (dict, lambda d: step_of_class(), lambda d: Counts.steps.n),
    "the environment": (
        dict,
        lambda d: os.environ.__setitem__("FEDLIGHTNING_CALLS", str(int(os.environ["FEDLIGHTNING_CALLS"]) + 1)),
        lambda d: int(os.environ["FEDLIGHTNING_CALLS"]),
    ),
    "a global": (dict, lambda d: TOTAL.__setitem__("n", TOTAL["n"] + 1), lambda d: TOTAL["n"]),
}


class Steps:
    n = 0


def step_of_class():
    Counts.steps.n += 1


class Counts(Line):
    """Counts its calls, from a round on, and weighs the loss with the count."""

    steps = Steps()

    def __init__(self, kind, since, **federation):
        super().__init__(**federation)
        make, self.step, self.read = KINDS[kind]
        self.held, self.since = make(), since
        TOTAL["n"] = Counts.steps.n = 0
        os.environ["FEDLIGHTNING_CALLS"] = "0"

    def objective(self, batch):
        if self.global_step >= self.since:
            self.step(self.held)
        return self.error(batch) * (1 + 0.005 * self.read(self.held))


@pytest.mark.parametrize("since", [0, LATE])
@pytest.mark.parametrize("kind", KINDS)
def test_state_of_every_kind_counts_evaluations_of_training_alone(kind, since, monkeypatch):
    made = []
    monkeypatch.setenv("FEDLIGHTNING_CALLS", "0")  # so that it is gone after the test

    def make(**federation):
        made.append(Counts(kind, since, **federation))
        return made[-1]

    found, expected = points(make, Vectorized(chunk_size=3)), points(make, Sequential())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    evaluations = len(clients()) * 5 * (4 - since)  # clients, steps, rounds
    assert made[-1].read(made[-1].held) == evaluations


def test_what_is_too_large_to_be_put_back_is_refused_by_name():
    class Large(Line):
        def __init__(self, **federation):
            super().__init__(**federation)
            self.bank = torch.zeros(200_000)

        def objective(self, batch):
            if self.global_step >= LATE:
                self.bank += 1
            return self.error(batch) * (1 + 0.005 * self.bank[0])

    points(Large, Sequential())
    with pytest.raises(ObjectiveError, match=r"begun to change self\.bank, which is too large to be put back"):
        points(Large, Vectorized(chunk_size=3))
