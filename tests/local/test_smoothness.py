"""Estimates of smoothness against eigenvalues."""

from __future__ import annotations

import pytest
import torch

from fedlightning.local import FixedSteps, GradientDescent, LocalSteps, estimate_smoothness
from fedlightning.oracle.gradient import GradientOracle
from tests.support.finite_sums import CLIENTS, DIM, SAMPLES, Samples, evaluate, finite_sum, noisy, subproblem


@pytest.mark.parametrize("solver", [GradientDescent(max_steps=1), LocalSteps()], ids=type)
def test_smoothness_is_estimated_under_one_draw_of_the_noise(solver):
    """Differences of operators with noise of their own would be divided by a tiny h."""
    a, problem = finite_sum(), subproblem()
    data = Samples(a, 1)
    seen = a if solver.data == "full" else next(data.minibatches()).data
    start = torch.zeros(CLIENTS, DIM, dtype=torch.float64)
    torch.manual_seed(3)
    noise = 10 * torch.randn_like(start)
    torch.manual_seed(3)
    oracle = GradientOracle(data, noisy, torch.empty(CLIENTS, 0, dtype=torch.float64))
    moved = solver.solve(start, oracle, problem, FixedSteps()).w
    smoothness = estimate_smoothness(lambda w: evaluate(w, None, None, seen).g, start)
    g = evaluate(start, None, None, seen).g + noise
    expected = start - problem.operator(start, g) / (problem.weight + smoothness)
    torch.testing.assert_close(moved, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_smoothness_is_the_largest_eigenvalue(dtype):
    a = finite_sum().to(dtype)
    hessian = a.mT @ a / SAMPLES
    largest = torch.linalg.eigvalsh(hessian)[:, -1]
    point = torch.full((CLIENTS, DIM), 0.7, dtype=dtype)
    estimate = estimate_smoothness(lambda w: (hessian @ w[:, :, None]).squeeze(2) + 1, point, iterations=30).squeeze(1)
    assert (estimate >= 0.98 * largest).all()
    assert (estimate <= 2**0.25 * 1.01 * largest).all()
