"""FedDR: exact means over all clients, whoever takes part."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.local import LocalSteps
from fedlightning.oracle import Autocast
from fedlightning.participation import Uniform
from tests.support.federations import quadratic
from tests.support.lasso import (
    SIZES,
    assert_a_fifth_of_the_clients_at_a_time_solves_it,
    federation,
)
from tests.support.regularized import assert_l1_and_box_follow, with_and_without_maximum


def test_means_over_all_clients_are_exact_from_the_first_round_on():
    """Clients never sampled count with their start: FedDR's server holds the mean of 2 x_i - y_i over all N."""
    loop, batches = federation(fl.FedDR(eta=0.5), 6, participation=Uniform(1))
    for batch in batches:
        loop.run(batch, Autocast("cpu"))
        reflections = 2 * loop.clients.all("state.x") - loop.clients.all("state.y")
        torch.testing.assert_close(loop.state.xhat, reflections.mean(0), rtol=1e-12, atol=1e-12)
    assert len(loop.clients.seen) < len(SIZES)


def test_a_fifth_of_the_clients_at_a_time_reaches_the_same_point():
    assert_a_fifth_of_the_clients_at_a_time_solves_it(fl.FedDR(eta=0.5, alpha=1.0, solver=LocalSteps(lr=0.3)), 260)


def test_a_relaxation_of_two_is_refused():
    with pytest.raises(ValueError, match=r"FedDR\(alpha=2.0\): expected > 0 and < 2"):
        fl.FedDR(eta=1.0, alpha=2.0)


def test_a_server_optimizer_cannot_move_what_is_computed():
    with pytest.raises(ValueError, match="FedDR computes the point from its server state"):
        quadratic(fl.FedDR(eta=0.1), server_clip=1.0)


@with_and_without_maximum
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(dim_y):
    assert_l1_and_box_follow("FedDR", dim_y)
