"""SCAFFOLD: what its control variates are."""

from __future__ import annotations

import torch

from fedlightning import algorithms as fl
from tests.support.federations import close, train


def test_the_control_variate_is_the_mean_over_all_clients_whoever_took_part():
    _, loop, _ = train(fl.SCAFFOLD(lr=0.05, lr_server=0.9), rounds=6, size=2)
    close(loop.state.c, loop.clients.all("state.c").mean(0))


def test_control_variates_end_at_the_clients_operators():
    task, loop, _ = train(fl.SCAFFOLD(lr=0.06), rounds=60)
    operators = task.matrix @ task.solution + task.offset
    torch.testing.assert_close(loop.clients.all("state.c"), operators, rtol=0, atol=1e-7)


def test_one_step_from_unknown_operators_is_fed_avg():
    close(train(fl.SCAFFOLD(lr=0.05), rounds=1)[2], train(fl.FedAvg(lr=0.05), rounds=1)[2])
