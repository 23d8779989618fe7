"""Methods that take regularisers: trajectories with L1 + box, ergodic output, rates, limits, and who refuses."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning import algorithms as fl
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.proximal import L1, EntropySimplex, GroupLasso, Nuclear, SpectralBall, compose
from tests.algorithms.cases import CASES
from tests.federations import K, cohorts_of, loop_for, numpy_operators, quadratic, rounds_of, run, start_of
from tests.references.composite import L1Box, fe_dual_ex
from tests.small import Line, clients, trainer

COMPOSITE = [name for name, case in CASES.items() if case.make.regularized]
PSI = {"regularizer": L1(0.3, radius=0.4), "max_regularizer": L1(0.3, radius=0.4)}


def loop_with(task, regularizer=None, max_regularizer=None, oracle=None):
    return loop_for(task, oracle, regularizer=compose(task.parameter_space().shared, regularizer, max_regularizer))


@pytest.mark.parametrize("name", COMPOSITE)
@pytest.mark.parametrize("dim_y", [3, 0], ids=["minimax", "minimisation"])
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(name, dim_y):
    case = CASES[name]
    algorithm = case.algorithm()
    task = quadratic(algorithm, dim_y=dim_y)
    batches = rounds_of(algorithm, 6, size=4)
    psi = PSI if dim_y else {"regularizer": PSI["regularizer"]}
    trajectory = run(loop_with(task, **psi), batches)
    expected = case.reference(
        numpy_operators(task), start_of(task), cohorts_of(batches), K, psi=L1Box(0.3, 0.4), **case.hyper
    )
    torch.testing.assert_close(trajectory, torch.from_numpy(np.stack(expected)), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("psi", [None, L1Box(0.3, 0.4)], ids=["plain", "l1_box"])
def test_ergodic_output_equals_the_numpy_reference(psi):
    algorithm = fl.FeDualEx(lr=0.05, lr_server=0.9, output="ergodic")
    task = quadratic(algorithm)
    batches = rounds_of(algorithm, 4, size=4)
    trajectory = run(loop_with(task, **(PSI if psi else {})), batches)
    expected = fe_dual_ex(
        numpy_operators(task), start_of(task), cohorts_of(batches), K, 0.05, 0.9, output="ergodic", psi=psi
    )
    torch.testing.assert_close(trajectory, torch.from_numpy(np.stack(expected)), rtol=1e-10, atol=1e-10)


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


def test_proximal_gradient_method_solves_the_regularised_saddle_point():
    """At the solution -g(z) is a subgradient of psi: the sign of z where z is not zero, within [-1, 1] where it is."""
    algorithm = fl.FedSGDA(lr=0.05)
    task = quadratic(algorithm)
    z = run(loop_with(task, L1(0.3), L1(0.3)), rounds_of(algorithm, 1500))[-1]
    g = task.matrix.mean(0) @ z + task.offset.mean(0)
    zero = z == 0
    torch.testing.assert_close(g[~zero], -0.3 * z[~zero].sign(), rtol=0, atol=1e-9)
    assert (g[zero].abs() <= 0.3 + 1e-9).all()


def bilinear(algorithm, noise, rounds):
    """Gap of f(x, y) = x'By on ||x||_inf, ||y||_inf <= 1 after ``rounds`` rounds of one client, one step each."""
    task = quadratic(algorithm, num_clients=1, noise=noise)
    coupling = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    task.matrix.zero_()
    task.matrix[:, :5, 5:], task.matrix[:, 5:, :5] = coupling, -coupling.T
    task.offset.zero_()
    psi = L1(1e-12, radius=1.0)
    loop = loop_with(task, psi, psi)
    z = run(loop, rounds_of(algorithm, rounds, num_clients=1, local_steps=1))[-1]
    x, y = z[:5], z[5:]
    return float((coupling.T @ x).abs().sum() + (coupling @ y).abs().sum())


def test_deterministic_dual_extrapolation_has_its_rate():
    """Theorem 4: the gap of the ergodic mean is at most beta * B / T."""
    gaps = {t: bilinear(fl.FeDualEx(lr=0.2, output="ergodic"), 0.0, t) for t in (50, 100, 200)}
    for t, gap in gaps.items():
        assert gap <= 8 / 0.2 / t  # V(z) = ||z - z_0||^2 / 2 <= 2 * 8, halved on average
    assert gaps[200] < 0.6 * gaps[100] < 0.36 * gaps[50] * 1.2


def test_stochastic_dual_extrapolation_slows_down_to_its_rate():
    """Theorem 3, O(1/T + sigma / sqrt(T)): the gap falls with lr ~ 1/sqrt(T), but far slower than without noise."""
    noisy = {t: bilinear(fl.FeDualEx(lr=2 / math.sqrt(t), output="ergodic"), 2.0, t) for t in (50, 450)}
    assert noisy[450] < 0.75 * noisy[50]
    assert noisy[450] > 4 * bilinear(fl.FeDualEx(lr=0.2, output="ergodic"), 0.0, 450)


def test_without_regulariser_one_client_one_step_is_dual_extrapolation():
    algorithm = fl.FeDualEx(lr=0.1)
    task = quadratic(algorithm, num_clients=1)
    trajectory = run(loop_for(task), rounds_of(algorithm, 5, num_clients=1, local_steps=1))
    (g,), z = numpy_operators(task), start_of(task)
    total, start = np.zeros_like(z), z
    for point in trajectory:
        half = (start - total) - 0.1 * g(start - total)
        total = total + 0.1 * g(half)
        np.testing.assert_allclose(point.numpy(), start - total, atol=1e-12)


def test_dual_averaging_without_regulariser_is_fed_avg():
    dual, primal = fl.FedDualAvg(lr=0.05), fl.FedAvg(lr=0.05)
    batches = rounds_of(dual, 4, size=4)
    ours, theirs = run(loop_for(quadratic(dual)), batches), run(loop_for(quadratic(primal)), batches)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


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


@pytest.mark.parametrize("name", sorted(set(CASES) - set(COMPOSITE)))
def test_who_takes_no_regulariser_says_so(name):
    with pytest.raises(ValueError, match=r"takes no regularizer.*FeDualEx.*FedDualAvg, FedMiD, FedMiP"):
        quadratic(CASES[name].algorithm(), regularizer=L1(0.1))


def test_ergodic_output_needs_equal_steps():
    with pytest.raises(ValueError, match=r"output='mean'.*expected 'last' or 'ergodic'"):
        fl.FeDualEx(lr=0.1, output="mean")


@pytest.mark.parametrize("name", ["FeDualEx", "FedMiP", "ExtraStepLocalSGD"])
def test_extra_steps_take_whole_local_steps_with_local_epochs(name):
    """Clients of unequal size and epochs that end within a minibatch: every local step still gets its two."""
    task = Line(CASES[name].make(lr=0.01))
    data = FederatedDataModule.from_datasets(clients(sizes=(5, 9, 10, 14)), batch_size=4, local_epochs=1)
    trainer(max_steps=2).fit(task, data)
    steps = [math.ceil(n / 4) for n in (5, 9, 10, 14)]
    if name == "FeDualEx":
        assert float(task.server_state.steps) == pytest.approx(2 * sum(steps) / 4)


@pytest.mark.filterwarnings("ignore:NaN or infinite numbers came from client 1")
@pytest.mark.parametrize("psi", [Nuclear(0.1), SpectralBall(1.0), GroupLasso(0.1)], ids=lambda psi: type(psi).__name__)
def test_a_client_with_nan_is_left_out_by_functions_of_matrices(psi):
    task = Line(fl.FedMiD(lr=0.01), regularizer={"body.0.weight": psi}, dropout=0.0)
    sets = clients()
    sets[1] = TensorDataset(torch.full((9, 6), torch.nan), torch.zeros(9))
    run_ = trainer(max_steps=2)
    run_.fit(task, FederatedDataModule.from_datasets(sets, batch_size=4, local_steps=2))
    assert run_.callback_metrics["left_out"] == 1
    assert all(p.isfinite().all() for p in task.parameters())
