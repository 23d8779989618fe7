"""FedADMM of Gong et al.: the exact server step, and what the duals become."""

from __future__ import annotations

import torch

from fedlightning import algorithms as fl
from fedlightning.local import LocalSteps
from tests.support.federations import close, train


def test_a_server_step_of_the_share_who_answer_keeps_the_point_the_mean_over_all():
    """With three of six clients a round and lr_server = 1/2, z is the mean of x_i + lam_i / rho over all six."""
    algorithm = fl.FedADMMGong(rho=5.0, lr_server=0.5, solver=LocalSteps(lr=0.06))
    _, loop, _ = train(algorithm, rounds=6, size=3)
    held = loop.clients.all("state.x") + loop.clients.all("state.lam") / 5.0
    close(loop.point, held.mean(0))


def test_duals_end_at_the_clients_negative_operators():
    algorithm = fl.FedADMMGong(rho=3.3, solver=LocalSteps(lr=0.1))
    task, loop, _ = train(algorithm, rounds=70)
    operators = task.matrix @ task.solution + task.offset
    torch.testing.assert_close(loop.clients.all("state.lam"), -operators, rtol=0, atol=1e-7)
