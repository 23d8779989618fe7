"""A way to compute that is wrong is found out, named, and given up for the next slower one."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn import functional as F

from fedlightning.algorithms import FedAvg
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.oracle import Auto, Autocast, Sequential, Vectorized
from fedlightning.oracle.checks.check import SelfCheck, fastest_that_agrees
from fedlightning.oracle.checks.comparison import Sample
from fedlightning.oracle.recording.graphs import NoGraphWarning
from tests.support.cohorts import S, Wrong, classify, setting
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.objectives_in_python import STEPS, trained


def checked(net, shape=(6,), loss=classify, dtype=torch.float64):
    """The check of an objective, and the objective."""
    objective, w, v, b, data = setting(net, shape, dtype, loss)
    batches = [tuple(leaf[:2] for leaf in data) for _ in range(3)]
    return SelfCheck(objective, Sample(w[:2], v[:2], b[:2], batches)), objective


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def with_scalars(net, batch):
    loss = classify(net, batch)
    return {"loss": loss, "twice": 2 * loss}


@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("g", "the gradient of 'net"),
        ("buffers", "buffer 'net"),
        ("loss", "the loss"),
        ("scalars", "the logged 'twice'"),
    ],
)
def test_every_quantity_is_compared_at_every_step(what, named, step):
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    check, _ = checked(net, loss=with_scalars)
    assert check(Wrong(by=0.0)) is None
    said = check(Wrong(what=what, step=step))
    assert said.startswith(named)
    assert said.endswith(f"at step {step + 1}")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rounding_is_no_difference_and_little_more_is(dtype):
    check, _ = checked(mlp(), dtype=dtype)
    assert check(Wrong(by=0.0, digits=10)) is None
    assert check(Wrong(by=10 * torch.finfo(dtype).eps ** 0.5)) is not None
    for way in (Vectorized(replay=True), Vectorized(replay=False, backward="vmap")):
        assert check(way) is None


@dataclass(frozen=True)
class Turned(Vectorized):
    """Gradients times a factor."""

    factor: float = -1.0

    def fallbacks(self, on_cpu):
        yield self

    def evaluator(self, objective, calls):
        right = Sequential().evaluator(objective, calls)

        def evaluate(*arguments):
            result = right(*arguments)
            return replace(result, g=self.factor * result.g)

        return evaluate


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16, "tf32"])
@pytest.mark.parametrize("factor", [-1.0, 0.0, 0.5, 1.2])
def test_coarse_numbers_are_no_excuse(precision, factor, monkeypatch):
    objective, w, v, b, data = setting(mlp(), (6,), torch.float32)
    if precision == "tf32":
        monkeypatch.setattr(SelfCheck, "eps", 2.0**-10)
    else:
        objective.autocast = Autocast("cpu", precision)
    check = SelfCheck(objective, Sample(w[:2], v[:2], b[:2], [tuple(leaf[:2] for leaf in data)]))
    assert check(Turned(factor=1.0)) is None
    assert check(Turned(factor=factor)) is not None
    for way in (Vectorized(replay=True, backward="autograd"), Vectorized(replay=False, backward="vmap")):
        assert check(way) is None


def test_gradients_that_are_nan_in_both_agree():
    def loss(net, batch):
        return classify(net, batch) + 0 * (net[0].weight - net[0].weight).sum().sqrt()

    check, objective = checked(mlp(), loss=loss)
    _, w, v, b, data = setting(mlp(), (6,), loss=loss)
    assert Sequential().evaluator(objective, 1)(w, v, b, data).g.isnan().any()
    assert check(Vectorized()) is None


@dataclass(frozen=True)
class Unscaled(Vectorized):
    """Right, and without a loss scale, so that nothing overflows."""

    def evaluator(self, objective, calls):
        right = Sequential().evaluator(objective, calls)

        def evaluate(*arguments):
            given = objective.autocast
            objective.autocast = replace(given, scale=1.0)
            try:
                return right(*arguments)
            finally:
                objective.autocast = given

        return evaluate


def test_a_gradient_that_overflows_one_by_one_accuses_nobody():
    """Scaled by 2**16, gradients of this loss are infinite in float16."""
    objective, w, v, b, data = setting(mlp(), (6,), torch.float32, lambda net, batch: 6e3 * classify(net, batch))
    objective.autocast = given = Autocast("cpu", torch.float16, scale=2.0**16)
    check = SelfCheck(objective, Sample(w[:2], v[:2], b[:2], [tuple(leaf[:2] for leaf in data)] * 3))
    assert check(Unscaled()) is None
    assert check(Wrong(by=5e2)) is not None
    assert objective.autocast is given


class Uncaptured(Vectorized):
    """Finds out in the first evaluation that no graph can be captured, and says no more of it."""

    def evaluator(self, objective, calls):
        if not hasattr(objective, "has_warned"):
            objective.has_warned = True
            warnings.warn("no graph", NoGraphWarning, stacklevel=2)
        return Sequential().evaluator(objective, calls)


def test_a_graph_that_cannot_be_captured_is_said_once():
    with pytest.warns(NoGraphWarning, match="no graph"):
        assert checked(mlp())[0](Uncaptured()) is None


def test_an_objective_at_the_edge_of_rounding_is_not_accused():
    """A gradient of rounding errors: two ways to sum agree in no digit, and neither is wrong."""

    def loss(net, batch):
        y = net(batch[0])
        return ((y - y.detach()) * 1e9).sum() + 1e-9 * ((y + 1e8) - 1e8 - y).square().sum()

    check, _ = checked(mlp(), loss=loss)
    assert check(Vectorized()) is None


def test_the_check_leaves_no_trace():
    net = mlp()
    net.calls = 0
    net.seen = []
    net.memory = torch.zeros(2)

    def loss(net, batch):
        net.calls += 1
        net.seen.append(net.calls)
        net.memory += 1
        net.extra = net.calls
        random.random()
        np.random.rand()
        return classify(net, (F.dropout(batch[0]), batch[1]))

    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    check, _ = checked(net, loss=loss)
    torch.set_rng_state(before[0])
    assert check(Sequential()) is None
    check(Vectorized())
    assert (net.calls, net.seen, net.memory.tolist()) == (0, [], [0, 0])
    assert not hasattr(net, "extra")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (np.random.get_state()[1] == before[2]).all()


def test_the_ladder_goes_down_as_far_as_it_must():
    tried = []

    def check_with(first_right):
        def check(oracle):
            tried.append(oracle)
            return None if len(tried) > first_right else f"wrong {len(tried)}"

        return check

    expected = [
        Vectorized(backward="autograd", replay=None),
        Vectorized(backward="autograd", replay=False),
        Vectorized(backward="vmap", replay=None),
        Vectorized(backward="vmap", replay=False),
        Sequential(),
    ]
    for right, way in enumerate(expected):
        tried.clear()
        found, why = fastest_that_agrees(Vectorized(), True, check_with(right))
        assert found == way
        assert (why is None) == (right == 0)
        assert right == 0 or why == "with Vectorized(backward='autograd', replay=True) wrong 1"
    assert next(Vectorized(compile=True).fallbacks(True)) == Vectorized(compile=True)


def wrong_side_by_side(client):
    """An objective that is another one for a client, but only beside others."""

    def change(task, original, batch):
        wrong = (batch == client).any() & is_functorch_wrapped_tensor(batch)
        return original(batch) * torch.where(wrong, 1.1, 1.0)

    return change


def test_the_last_client_of_a_cohort_is_compared_too():
    expected, _, _ = trained(Sequential(), wrong_side_by_side(5))
    found, loop, (line,) = trained(Vectorized(), wrong_side_by_side(5))
    assert loop.oracle == Sequential()
    assert " in client 5, at step 1" in line
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("client", "rounds"), [(1, 2), (3, 3), (4, 3)])
def test_every_look_compares_other_clients(client, rounds):
    """0 and 5 in the first round, then 1 and 2, then 3 and 4."""
    for length in (rounds - 1, rounds):
        _, loop, _ = trained(Vectorized(), wrong_side_by_side(client), rounds=length, self_check=1)
        assert isinstance(loop.oracle, Sequential) == (length == rounds)


def test_off_checks_nothing(monkeypatch):
    def never(*_):
        raise AssertionError("checked")

    monkeypatch.setattr(SelfCheck, "__init__", never)
    trained(Vectorized(), self_check="off")
    with pytest.raises(AssertionError, match="checked"):
        trained(Vectorized())


def test_off_keeps_the_oracle_and_says_what_speaks_against_it():
    def counts(task, original, batch):
        task.calls = getattr(task, "calls", 0) + 1
        return original(batch)

    _, loop, lines = trained(Vectorized(), counts, self_check="off")
    assert isinstance(loop.oracle, Vectorized)
    assert len(lines) == 1
    assert "as self_check='off' asks, although " in lines[0]
    assert "self.calls" in lines[0]


def test_a_batch_that_is_written_into_is_a_copy():
    """One client's data, met by the look, the check, the trial and every step, are those it holds."""

    def scales(task, original, batch):
        batch.mul_(2)
        return original(batch.remainder(6)) + (task.x * batch).square().sum()

    algorithm = FedAvg(0.05)
    points = []
    for oracle in (Sequential(), Vectorized(), Vectorized(replay=False), Auto()):
        task = quadratic(algorithm)
        original = task.objective
        task.objective = lambda batch, task=task, original=original: scales(task, original, batch)
        loop = loop_for(task, oracle, self_check="first")
        points.append(run(loop, rounds_of(algorithm, 2, local_steps=STEPS)))
    for other in points[1:]:
        torch.testing.assert_close(other, points[0], rtol=1e-12, atol=1e-12)


def test_the_same_round_twice_is_the_same_round():
    algorithm = FedAvg(0.05)
    (batch,) = rounds_of(algorithm, 1, local_steps=STEPS)
    again = RoundBatch(batch.index, batch.cohorts, batch.samples)
    points = [run(loop_for(quadratic(algorithm, noise=1.0), Vectorized()), [each]) for each in (batch, again)]
    assert torch.equal(*points)
    assert S == 3
