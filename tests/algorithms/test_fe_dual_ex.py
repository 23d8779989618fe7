"""FeDualEx: ergodic output, the rates of its theorems, and dual extrapolation of one client."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.proximal import L1
from tests.support.federations import (
    K,
    cohorts_of,
    loop_for,
    numpy_operators,
    quadratic,
    rounds_of,
    run,
    start_of,
)
from tests.support.references.composite import L1Box, fe_dual_ex
from tests.support.regularized import (
    PSI,
    assert_l1_and_box_follow,
    fitted_over_unequal_epochs,
    loop_with,
    with_and_without_maximum,
)


@pytest.mark.parametrize("psi", [None, L1Box(0.3, 0.4)], ids=["plain", "l1_box"])
def test_ergodic_output_equals_the_numpy_reference(psi):
    algorithm = fl.FeDualEx(lr=0.05, lr_server=0.9, output="ergodic")
    task = quadratic(algorithm)
    batches = rounds_of(algorithm, 4, size=4)
    trajectory = run(loop_with(task, **(PSI if psi else {})), batches)
    expected = fe_dual_ex(
        numpy_operators(task), start_of(task), cohorts_of(batches), K, 0.05, 0.9, output="ergodic", psi=psi
    )
    torch.testing.assert_close(trajectory, torch.from_numpy(np.stack(expected)), rtol=1e-10, atol=1e-10)


def bilinear(algorithm, noise, rounds):
    """Gap of f(x, y) = x'By on ||x||_inf, ||y||_inf <= 1 after ``rounds`` rounds of one client, one step each."""
    task = quadratic(algorithm, num_clients=1, noise=noise)
    coupling = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    task.matrix.zero_()
    task.matrix[:, :5, 5:], task.matrix[:, 5:, :5] = coupling, -coupling.T
    task.offset.zero_()
    psi = L1(1e-12, radius=1.0)
    loop = loop_with(task, psi, psi)
    z = run(loop, rounds_of(algorithm, rounds, num_clients=1, local_steps=1))[-1]
    x, y = z[:5], z[5:]
    return float((coupling.T @ x).abs().sum() + (coupling @ y).abs().sum())


def test_deterministic_dual_extrapolation_has_its_rate():
    """Theorem 4: the gap of the ergodic mean is at most beta * B / T."""
    gaps = {t: bilinear(fl.FeDualEx(lr=0.2, output="ergodic"), 0.0, t) for t in (50, 100, 200)}
    for t, gap in gaps.items():
        assert gap <= 8 / 0.2 / t  # V(z) = ||z - z_0||^2 / 2 <= 2 * 8, halved on average
    assert gaps[200] < 0.6 * gaps[100] < 0.36 * gaps[50] * 1.2


@pytest.mark.slow
def test_stochastic_dual_extrapolation_slows_down_to_its_rate():
    """Theorem 3, O(1/T + sigma / sqrt(T)): the gap falls with lr ~ 1/sqrt(T), but far slower than without noise."""
    noisy = {t: bilinear(fl.FeDualEx(lr=2 / math.sqrt(t), output="ergodic"), 2.0, t) for t in (50, 450)}
    assert noisy[450] < 0.75 * noisy[50]
    assert noisy[450] > 4 * bilinear(fl.FeDualEx(lr=0.2, output="ergodic"), 0.0, 450)


def test_without_regulariser_one_client_one_step_is_dual_extrapolation():
    algorithm = fl.FeDualEx(lr=0.1)
    task = quadratic(algorithm, num_clients=1)
    trajectory = run(loop_for(task), rounds_of(algorithm, 5, num_clients=1, local_steps=1))
    (g,), z = numpy_operators(task), start_of(task)
    total, start = np.zeros_like(z), z
    for point in trajectory:
        half = (start - total) - 0.1 * g(start - total)
        total = total + 0.1 * g(half)
        np.testing.assert_allclose(point.numpy(), start - total, atol=1e-12)


def test_ergodic_output_needs_equal_steps():
    with pytest.raises(ValueError, match=r"output='mean'.*expected 'last' or 'ergodic'"):
        fl.FeDualEx(lr=0.1, output="mean")


@with_and_without_maximum
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(dim_y):
    assert_l1_and_box_follow("FeDualEx", dim_y)


def test_extra_steps_take_whole_local_steps_with_local_epochs():
    task, steps = fitted_over_unequal_epochs(fl.FeDualEx(lr=0.01))
    assert float(task.server_state.steps) == pytest.approx(2 * sum(steps) / 4)
