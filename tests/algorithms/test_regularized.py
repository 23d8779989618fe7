"""Every method that takes regularizers, with L1 and a box on both blocks and over the simplex, and who takes none."""

from __future__ import annotations

import re

import pytest
import torch

from fedlightning.oracle import Sequential, Vectorized
from fedlightning.proximal import L1, EntropySimplex, Simplex
from tests.support.cases import CASES
from tests.support.federations import quadratic, rounds_of, run
from tests.support.paths import ROOT
from tests.support.regularized import COMPOSITE, PSI, loop_with


@pytest.mark.parametrize("name", COMPOSITE)
def test_regularised_vectorized_sequential_and_chunked_agree(name):
    algorithm = CASES[name].algorithm()
    trajectories = [
        run(loop_with(quadratic(algorithm), **PSI, oracle=oracle), rounds_of(algorithm, 3, size=5))
        for oracle in (Vectorized(), Sequential(), Vectorized(chunk_size=2))
    ]
    for other in trajectories[1:]:
        torch.testing.assert_close(trajectories[0], other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", COMPOSITE)
def test_points_keep_the_constraint(name):
    algorithm = CASES[name].algorithm()
    trajectory = run(loop_with(quadratic(algorithm), **PSI), rounds_of(algorithm, 3))
    assert trajectory.abs().max() <= 0.4


@pytest.mark.parametrize("name", ["FedDualAvg", "FeDualEx", "FedMiD", "FedMiP"])
def test_a_step_size_by_block_weighs_the_regulariser_of_its_block(name):
    algorithm = CASES[name].make(lr=[0.05, 0.02], lr_server=[1.0, 0.5])
    task = quadratic(algorithm)
    first = run(loop_with(task, **PSI), rounds_of(algorithm, 3))
    spread = CASES[name].make(lr={"x": 0.05, "y": 0.02}, lr_server={"x": 1.0, "y": 0.5})
    second = run(loop_with(task, **PSI), rounds_of(spread, 3))
    assert torch.equal(first, second)
    alike = run(loop_with(quadratic(CASES[name].make(lr=0.05)), **PSI), rounds_of(algorithm, 3))
    assert not torch.allclose(first, alike)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FedDualAvg", "FeDualEx", "FedMiD", "FedMiP"])
def test_entropy_geometry_solves_a_matrix_game(name):
    """Rock, paper, scissors: the saddle is the uniform pair; extra steps find it, the others circle or leave."""
    algorithm = CASES[name].make(lr=0.8)
    task = quadratic(algorithm, num_clients=1)
    task.x = torch.nn.Parameter(torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64))
    task.y = torch.nn.Parameter(torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64))
    game = torch.tensor([[0.0, 1, -1], [-1, 0, 1], [1, -1, 0]], dtype=torch.float64)
    task.matrix = torch.zeros(1, 6, 6, dtype=torch.float64)
    task.matrix[:, :3, 3:], task.matrix[:, 3:, :3] = game, -game.T
    task.offset = torch.zeros(1, 6, dtype=torch.float64)
    loop = loop_with(task, EntropySimplex(), EntropySimplex())
    z = run(loop, rounds_of(algorithm, 200, num_clients=1, local_steps=2))[-1]
    torch.testing.assert_close(z.view(2, 3).sum(1), torch.ones(2, dtype=torch.float64))
    distance = (z - 1 / 3).norm()
    assert distance < 1e-4 if name in ("FeDualEx", "FedMiP") else distance > 0.3


@pytest.mark.parametrize("name", ["FedDualAvg", "FeDualEx", "FedMiD", "FedMiP"])
def test_entropy_geometry_finds_the_best_corner_from_any_start(name):
    """min <c, p> over the simplex, started where the Euclidean projection has zeros, the best corner among them."""
    algorithm = CASES[name].make(lr=0.3)
    task = quadratic(algorithm, num_clients=1, dim_y=0)
    cost = torch.tensor([1.0, 0.0, 0.8], dtype=torch.float64)
    task.x = torch.nn.Parameter(torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64))
    task.matrix, task.offset = torch.zeros(1, 3, 3, dtype=torch.float64), cost[None]
    z = run(loop_with(task, EntropySimplex()), rounds_of(algorithm, 60, num_clients=1, local_steps=2))[-1]
    assert (z.argmax(), cost.argmin()) == (1, 1)
    assert z[1] > 0.99


def test_the_guide_says_under_which_methods_entropy_geometry_multiplies():
    others = set()
    for name in COMPOSITE:
        algorithm = CASES[name].algorithm()
        euclidean, entropic = (
            run(loop_with(quadratic(algorithm), psi, psi), rounds_of(algorithm, 2))
            for psi in (Simplex(), EntropySimplex())
        )
        if not torch.equal(euclidean, entropic):
            others.add(name)
    guide = " ".join((ROOT / "docs/tasks.md").read_text().split())
    named = re.search(r"steps are multiplicative under (.*?), which step in the dual space", guide)[1]
    assert others == set(re.findall(r"`(\w+)`", named))


@pytest.mark.parametrize("name", sorted(set(CASES) - set(COMPOSITE)))
def test_who_takes_no_regulariser_says_so(name):
    with pytest.raises(ValueError, match=r"takes no regularizer.*FeDualEx.*FedDualAvg, FedMiD, FedMiP"):
        quadratic(CASES[name].algorithm(), regularizer=L1(0.1))
