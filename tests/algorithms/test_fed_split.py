"""FedSplit: its stopping rule and its fixed point."""

from __future__ import annotations

import torch

from fedlightning import algorithms as fl
from fedlightning.local import FixedSteps, LocalSteps
from tests.support.federations import train


def test_fixed_steps_is_the_default():
    assert isinstance(fl.FedSplit(s=0.1).own_rule, FixedSteps)


def test_at_the_fixed_point_every_client_holds_its_forward_step():
    """x_i = prox(2 z - z_i) = z there, so 2 z - z_i = z + s * g_i(z)."""
    algorithm = fl.FedSplit(s=0.2, solver=LocalSteps(lr=0.12))
    task, loop, _ = train(algorithm, rounds=55)
    z = loop.point
    torch.testing.assert_close(z, task.solution, rtol=0, atol=1e-9)
    expected = z - 0.2 * (task.matrix @ z + task.offset)
    torch.testing.assert_close(loop.clients.all("state.z"), expected, rtol=0, atol=1e-8)
