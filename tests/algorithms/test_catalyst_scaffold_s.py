"""Catalyst-Scaffold-S: the coin, the lengths of its rounds, its stages, and that randomness is shared."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.algorithms import CatalystScaffoldS
from tests.support.stages import (
    ORACLES,
    Counter,
    Saddle,
    assert_stages_begin_at_the_model,
    fitted,
    under_server_optimizers,
)


def test_the_coin_is_geometric():
    algorithm = fl.CatalystScaffoldS(0.05, p=0.2)
    steps = torch.tensor([algorithm.steps_of(t) for t in range(10_000)], dtype=torch.float64)
    for k in (1, 2, 5, 10):
        share = 0.2 * 0.8 ** (k - 1)
        assert abs(float((steps == k).double().mean()) - share) < 4 * (share * (1 - share) / 10_000) ** 0.5
    assert abs(float(steps.mean()) - 5) < 4 * (0.8 / 0.04 / 10_000) ** 0.5


def test_catalyst_takes_the_same_steps_with_every_client_in_any_chunking():
    algorithm = CatalystScaffoldS(lr=1.0, p=0.1, theta=0.0, stage_steps=10**9, seed=2)
    steps = algorithm.steps_of(0)
    assert steps > 5  # more than any client's minibatches
    for oracle in ORACLES:
        assert fitted(Counter(algorithm, oracle=oracle), 1).x.item() == -steps


@pytest.mark.parametrize("p", [0.5, 0.1])
def test_catalyst_on_unequal_clients_does_not_depend_on_the_chunking(p):
    algorithm = CatalystScaffoldS(lr=0.05, p=p, theta=0.3, stage_steps=7)
    points = [fitted(Saddle(algorithm, oracle=oracle), 6).server_state.z for oracle in ORACLES]
    assert (points[0] - 1).abs().max() > 1e-2
    for other in points[1:]:
        torch.testing.assert_close(other, points[0], rtol=1e-12, atol=1e-12)


@under_server_optimizers
def test_stages_begin_at_the_model_a_server_optimizer_moved_to(server):
    assert_stages_begin_at_the_model(fl.CatalystScaffoldS(lr=0.1, p=0.5, stage_steps=4), server)
