"""Scaffnew: the printed algorithm, the exact solution with some of the clients a round, and what the server keeps."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.schedules import Exponential
from tests.support.federations import close, loop_for, numpy_operators, quadratic, rounds_of, run, start_of, train
from tests.support.references.scaffnew import prox_skip
from tests.support.stages import ORACLES, Counter, fitted

PROBLEM = {"num_clients": 10, "heterogeneity": 0.5}
CHI = 10 * 2 / (3 * 9)
"""The largest that TAMUNA allows with 3 of 10 clients."""


def full_variates(loop):
    """Every client's control variate with what it lacks."""
    h = loop.clients.all("state.h").clone()
    h[loop.state.clients] += loop.state.moves
    return h


def test_with_all_clients_it_is_the_loop_over_steps_that_is_printed():
    algorithm = fl.Scaffnew(lr=0.05, p=0.3, seed=1)
    task, _, trajectory = train(algorithm, rounds=8)
    means = list(accumulate(algorithm.steps_of(t) for t in range(8)))
    z = start_of(quadratic(algorithm))
    expected = prox_skip(numpy_operators(task), z, means[-1], 0.05, 0.3, lambda t: t + 1 in means)
    close(trajectory, torch.from_numpy(np.stack(expected)), 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lr", "dim_y"), [(0.1, 3), (Exponential(0.1, gamma=0.999), 0)], ids=["minimax", "minimisation-falling"]
)
def test_it_reaches_the_solution_with_thirty_percent_of_the_clients(lr, dim_y):
    algorithm = fl.Scaffnew(lr, p=0.5, chi=CHI)
    task = quadratic(algorithm, dim_y=dim_y, **PROBLEM)
    loop = loop_for(task)
    trajectory = run(loop, rounds_of(algorithm, 280, num_clients=10, size=3))
    distance = (trajectory - task.solution).norm(dim=1)
    assert distance[-1] < 1e-8
    assert distance[50] > 1e-4
    operators = task.matrix @ task.solution + task.offset
    torch.testing.assert_close(full_variates(loop), operators, rtol=0, atol=1e-5)


def test_control_variates_have_the_mean_zero_whoever_took_part():
    _, loop, _ = train(fl.Scaffnew(Exponential(0.05, gamma=0.8), p=0.3), rounds=6, size=2)
    h = full_variates(loop)
    assert h.norm() > 1e-2
    close(h.mean(0), torch.zeros_like(h[0]))
    assert loop.state.clients.unique().numel() == len(loop.state.clients)


def test_with_one_client_a_round_nothing_is_corrected():
    algorithm = fl.Scaffnew(0.05, p=0.3)
    task = quadratic(algorithm)
    loop = loop_for(task)
    run(loop, rounds_of(algorithm, 6, size=1))
    assert not full_variates(loop).any()


def test_clients_that_never_took_part_lack_nothing():
    _, loop, _ = train(fl.Scaffnew(0.05, p=0.3), rounds=1, size=2)
    message = loop.algorithm.broadcast(loop.state)
    never = [i for i in range(6) if i not in loop.state.clients.tolist()]
    assert len(never) == 4
    assert not message.lacking.of(never).any()
    assert message.lacking.of(loop.state.clients.tolist()).any()


def test_all_clients_take_as_many_steps_in_any_chunking():
    algorithm = fl.Scaffnew(lr=1.0, p=0.1, seed=2)
    steps = algorithm.steps_of(0)
    assert steps > 5  # more than any client's minibatches
    for oracle in ORACLES:
        assert fitted(Counter(algorithm, oracle=oracle), 1).x.item() == -steps
