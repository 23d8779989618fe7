"""What counts as rounding, and what is said of that which does not."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.checks.comparison import MOST, Comparison, Sample, Tolerance
from tests.support.cohorts import Wrong, classify, setting


def comparison(ids=(4, 9), steps=3):
    torch.manual_seed(0)
    objective, w, v, b, data = setting(nn.Linear(6, 3), (6,), torch.float64, classify)
    batches = [tuple(leaf[:2] for leaf in data)] * 3
    return Comparison(objective, Sample(w[:2], v[:2], b[:2], batches, ids), steps), w


FINE = Tolerance.of(torch.finfo(torch.float64).eps)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_a_tolerance_is_the_root_of_the_precision(dtype):
    eps = torch.finfo(dtype).eps
    tolerance = Tolerance.of(eps)
    assert tolerance.relative == min(eps**0.5, MOST)
    assert tolerance.summed == min(100 * eps, MOST)


def test_a_coarser_quantity_has_a_larger_tolerance():
    assert FINE.at_least_of(torch.float16) == Tolerance.of(2.0**-10)
    coarse = Tolerance.of(2.0**-7)
    assert coarse.at_least_of(torch.float32) is coarse
    assert coarse.at_least_of(torch.int64) is coarse


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(), Vectorized(backward="vmap")])
def test_ways_that_agree_differ_in_nothing(oracle):
    found, _ = comparison()
    assert found.is_finite
    assert found.difference(oracle, FINE) is None


def test_a_difference_names_quantity_client_and_step():
    found, _ = comparison()
    said = found.difference(Wrong(what="g", step=1), FINE)
    assert said.startswith("the gradient of 'net.")
    assert said.endswith(" at step 2")
    assert "in client 9," in said


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("oracle", [Vectorized(), Vectorized(parts=2), Vectorized(backward="each", threads=1)])
def test_a_step_in_place_along_something_else_is_named(oracle, dtype, monkeypatch):
    torch.manual_seed(0)
    objective, w, v, b, data = setting(nn.Linear(6, 3), (6,), dtype, classify)
    objective.draws = False
    found = Comparison(objective, Sample(w, v, b, [data] * 3, range(3)))
    fine = Tolerance.of(torch.finfo(dtype).eps)
    assert found.difference(oracle, fine) is None
    steps = type(oracle.evaluator(objective, 3)).steps_in_place

    @contextmanager
    def moves_the_last_number_of_the_last_client(self, w, *arguments):
        with steps(self, w, *arguments) as step:
            yield step
        w[-1, -1] *= 1.01

    monkeypatch.setattr(
        type(oracle.evaluator(objective, 3)), "steps_in_place", moves_the_last_number_of_the_last_client
    )
    assert found.difference(oracle, fine).endswith(" in client 2, at step 3")


def test_a_difference_within_the_tolerance_is_rounding():
    found, _ = comparison()
    assert found.difference(Wrong(by=1e-12), FINE) is None
    assert found.difference(Wrong(by=1e-3), FINE) is not None


class AtZero(nn.Module):
    """A ReLU whose argument is zero; which side of it counts depends on the last digit of one weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(6))

    def forward(self, x):
        return torch.relu(self.weight[2] - 1.0) + 0.0 * (self.weight * x).sum()


class OtherSide(Vectorized):
    """Rounds the weight up before it evaluates."""

    def evaluator(self, objective, calls):
        right = Sequential().evaluator(objective, calls)
        return lambda w, *others: right(w * (1 + torch.finfo(w.dtype).eps), *others)


@pytest.mark.parametrize(("ways", "is_rounding"), [(1, False), (8, True)])
def test_a_relu_at_zero_is_found_by_rounding_in_several_ways(ways, is_rounding, monkeypatch):
    """The first way rounds this weight down, where the gradient is zero as well."""
    monkeypatch.setattr("fedlightning.oracle.checks.comparison.ROUNDINGS", ways)
    objective, _, v, b, data = setting(AtZero(), (6,), torch.float64, lambda net, batch: net(batch[0]))
    found = Comparison(objective, Sample(torch.ones(2, 6).double(), v[:2], b[:2], [data[0][:2]] * 3))
    difference = found.difference(OtherSide(), FINE)
    assert (difference is None) == is_rounding


def test_the_last_client_of_a_sample():
    w, empty = torch.arange(6.0).view(2, 3), torch.empty(2, 0)
    last = Sample(w, empty, empty, [(torch.tensor([[1.0], [2.0]]),)], (4, 9)).last()
    assert last.w.tolist() == [[3.0, 4.0, 5.0]]
    assert last.data[0][0].tolist() == [[2.0]]
    assert last.ids == (9,)


def test_a_comparison_leaves_the_points_and_generators_as_they_were():
    found, w = comparison()
    kept, state = w.clone(), torch.random.get_rng_state()
    found.difference(Vectorized(), FINE)
    assert torch.equal(w, kept)
    assert torch.equal(torch.random.get_rng_state(), state)
