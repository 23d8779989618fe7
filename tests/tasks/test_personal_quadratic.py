"""The quadratic problem with personal blocks: its solution and what it logs."""

from __future__ import annotations

import torch

from fedlightning import algorithms as fl
from tests.support.federations import personal_quadratic


def test_solution_solves_the_joint_problem():
    task = personal_quadratic(fl.FedSim(0.1), num_clients=3, dim_shared=2, dim_personal=2)
    u, v = task.solution
    matrix, offset = torch.zeros(8, 8, dtype=torch.float64), torch.zeros(8, dtype=torch.float64)
    for i in range(3):
        own = [0, 1, 2 + 2 * i, 3 + 2 * i]
        matrix[torch.tensor(own)[:, None], own] += task.matrix[i]
        offset[own] += task.offset[i]
    torch.testing.assert_close(torch.cat([u, v.flatten()]), torch.linalg.solve(matrix, -offset))
