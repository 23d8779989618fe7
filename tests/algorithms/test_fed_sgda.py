"""FedSGDA with all data is the proximal gradient method."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.proximal import L1
from tests.support.federations import quadratic, rounds_of, run
from tests.support.regularized import assert_l1_and_box_follow, loop_with, with_and_without_maximum


@pytest.mark.slow
def test_proximal_gradient_method_solves_the_regularised_saddle_point():
    """At the solution -g(z) is a subgradient of psi: the sign of z where z is not zero, within [-1, 1] where it is."""
    algorithm = fl.FedSGDA(lr=0.05)
    task = quadratic(algorithm)
    z = run(loop_with(task, L1(0.3), L1(0.3)), rounds_of(algorithm, 1500))[-1]
    g = task.matrix.mean(0) @ z + task.offset.mean(0)
    zero = z == 0
    torch.testing.assert_close(g[~zero], -0.3 * z[~zero].sign(), rtol=0, atol=1e-9)
    assert (g[zero].abs() <= 0.3 + 1e-9).all()


@with_and_without_maximum
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(dim_y):
    assert_l1_and_box_follow("FedSGDA", dim_y)
