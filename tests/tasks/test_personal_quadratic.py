"""The quadratic problem with personal blocks: its solution and what it logs."""

from __future__ import annotations

import torch

from fedlightning import algorithms as fl
from fedlightning.algorithms import FedAPM
from fedlightning.tasks import ClientNumbers, PersonalQuadratic
from tests.support.federations import personal_quadratic
from tests.support.small import trainer


def test_solution_solves_the_joint_problem():
    task = personal_quadratic(fl.FedSim(0.1), num_clients=3, dim_shared=2, dim_personal=2)
    u, v = task.solution
    matrix, offset = torch.zeros(8, 8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    for i in range(3):
        own = [0, 1, 2 + 2 * i, 3 + 2 * i]
        matrix[torch.tensor(own)[:, None], own] += task.matrix[i]
        offset[own] += task.offset[i]
    torch.testing.assert_close(torch.cat([u, v.flatten()]), torch.linalg.solve(matrix, -offset))


def test_the_quadratic_problem_logs_distances_of_both_blocks():
    task = PersonalQuadratic(FedAPM(0.15, rho=2.0), num_clients=4)
    fit = trainer(max_steps=150, val_check_interval=150, check_val_every_n_epoch=None, precision="64-true")
    fit.fit(task, ClientNumbers(4, local_steps=5, rounds_per_epoch=150))
    assert fit.callback_metrics["distance"] < 1e-6
    assert fit.callback_metrics["personal_distance_worst"] < 1e-6
