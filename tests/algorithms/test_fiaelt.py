"""FIAELT on the lasso: its claims, its own penalties, and SVRG on minibatches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.local import SVRG, DecreasingTolerance, GradientDescent, GradientTolerance
from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.schedules import Exponential
from tests.support.federations import loop_for, quadratic, rounds_of, run
from tests.support.lasso import (
    FEATURES,
    SIZES,
    SMOOTHNESS,
    assert_a_fifth_of_the_clients_at_a_time_solves_it,
    assert_a_given_rule_replaces_the_methods_own,
    federation,
    hessians,
    lasso,
    solve,
)
from tests.support.regularized import assert_l1_and_box_follow, with_and_without_maximum


def test_fiaelt_with_svrg_on_minibatches_solves_the_lasso():
    """Minibatches of 3 out of 8 or 12 samples, and still 1e-8: the variance vanishes at the solution."""
    svrg = SVRG(lr=0.1, inner_steps=15, epochs=10)
    loop, logs = solve(fl.FIAELT(beta=2 * SMOOTHNESS, smoothness=SMOOTHNESS, solver=svrg), 80, batch_size=3)
    torch.testing.assert_close(loop.point, lasso(), rtol=0, atol=1e-8)
    duals = loop.clients.all("state.z")
    for (hessian, linear), dual in zip(hessians(), duals, strict=True):
        torch.testing.assert_close(dual, linear - hessian @ loop.point, rtol=0, atol=1e-6)
    steps = [float(log["inner_steps"]) for log in logs]
    assert np.mean(steps[-30:]) <= np.mean(steps[:30]) * 1.1
    assert max(steps) < svrg.steps / 2


def test_steps_of_fiaelt_stay_level_where_tolerances_make_others_work_more():
    """Table 1's point: solving ever more precisely costs more from round to round, solving relative to it does not."""
    solver = GradientDescent(max_steps=10_000)
    curves = {
        "FIAELT": fl.FIAELT(beta=5 * SMOOTHNESS, solver=solver),
        "FedPD": fl.FedPD(eta=1 / (5 * SMOOTHNESS), solver=solver, stop=DecreasingTolerance(1.0, 0.5)),
        "FedADMM": fl.FedADMM(sigma=5 * SMOOTHNESS, nu=0.5, solver=solver),
    }
    steps = {}
    for name, algorithm in curves.items():
        _, logs = solve(algorithm, 60)
        steps[name] = [float(log["inner_steps"]) for log in logs]
    assert max(steps["FIAELT"][1:]) <= 8
    assert max(steps["FIAELT"][-20:]) <= max(steps["FIAELT"][1:21])
    for name in ("FedPD", "FedADMM"):
        assert np.mean(steps[name][-20:]) > 1.5 * np.mean(steps[name][5:25])


def test_a_tolerance_tightens_by_a_schedule_as_there_are_no_turns():
    solver = GradientDescent(max_steps=10_000)
    with pytest.raises(ValueError, match="DecreasingTolerance tightens from turn to turn, but this algorithm counts"):
        solve(fl.FIAELT(beta=5 * SMOOTHNESS, solver=solver, stop=DecreasingTolerance(1.0, 0.5)), 1)
    tightening = GradientTolerance(Exponential(1.0, gamma=0.6))
    loop, _ = solve(fl.FIAELT(beta=5 * SMOOTHNESS, solver=solver, stop=tightening), 120)
    torch.testing.assert_close(loop.point, lasso(), rtol=0, atol=1e-6)


def test_the_test_of_fiaelt_implies_its_criterion():
    """||x+ - x*||^2 <= r * ||x_i - x*||^2, by the closed form of x*."""
    beta, r = 5 * SMOOTHNESS, 0.005
    algorithm = fl.FIAELT(beta=beta, r=r, solver=GradientDescent())
    loop, batches = federation(algorithm, 10)
    for batch in batches:
        y = loop.point
        started = loop.runner.clients.table.has_states
        before = loop.clients.all("state.x") if started else torch.full((len(SIZES), FEATURES), 0.5).double()
        duals = loop.clients.all("state.z") if started else torch.zeros(len(SIZES), FEATURES).double()
        loop.run(batch, Autocast("cpu"))
        after = loop.clients.all("state.x")
        for i, (hessian, linear) in enumerate(hessians()):
            system = hessian + beta * torch.eye(FEATURES, dtype=torch.float64)
            exact = torch.linalg.solve(system, linear - duals[i] + beta * y)
            assert (after[i] - exact).square().sum() <= r * (before[i] - exact).square().sum()


def test_estimated_penalties_are_five_times_the_smoothness():
    loop, _ = solve(fl.FIAELT(solver=GradientDescent()), 1)
    for beta, (hessian, _) in zip(loop.clients.all("state.beta"), hessians(), strict=True):
        largest = float(torch.linalg.eigvalsh(hessian).max())
        assert 0.95 * 5 * largest <= float(beta) <= 5 * 2**0.25 * largest


@pytest.mark.slow
def test_estimated_penalties_under_partial_participation():
    loop, _ = solve(fl.FIAELT(solver=GradientDescent()), 310, participation=Uniform(3))
    torch.testing.assert_close(loop.point, lasso(), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    "algorithm",
    [fl.FIAELT(beta=5.0, solver=SVRG(inner_steps=8, epochs=3)), fl.FIAELT(solver=GradientDescent())],
    ids=["svrg", "own-penalties"],
)
def test_svrg_and_estimates_resume_bit_for_bit(algorithm):
    whole, batches = federation(algorithm, 6, batch_size=3, participation=Uniform(2))
    batches = list(batches)
    trajectory = run(whole, batches)
    first, _ = federation(algorithm, 6)
    run(first, batches[:3])
    second, _ = federation(algorithm, 6)
    second.load_state_dict(first.state_dict())
    assert torch.equal(run(second, batches[3:]), trajectory[3:])


def test_clients_whose_solver_has_nothing_to_do_count_in_no_loss():
    """SVRG may draw an epoch of no steps; such a client evaluates nothing, beside others or alone."""
    algorithm = fl.FIAELT(beta=5.0, solver=SVRG(inner_steps=2, epochs=1))
    losses = []
    for oracle in (Sequential(), Vectorized()):
        loop = loop_for(quadratic(algorithm), oracle)
        losses.append([float(loop.run(b, Autocast("cpu")).metrics["train_loss"]) for b in rounds_of(algorithm, 5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)


def test_a_fifth_of_the_clients_at_a_time_reaches_the_same_point():
    algorithm = fl.FIAELT(beta=2 * SMOOTHNESS, smoothness=SMOOTHNESS, solver=GradientDescent())
    assert_a_fifth_of_the_clients_at_a_time_solves_it(algorithm, 420)


def test_a_rule_of_the_users_replaces_the_methods_own():
    assert_a_given_rule_replaces_the_methods_own(fl.FIAELT, beta=50.0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.FIAELT(beta=-1.0), r"FIAELT\(beta=-1.0\): expected > 0"),
        (lambda: fl.FIAELT(beta=1.0, r=1.0), r"FIAELT\(r=1.0\): expected > 0 and < 1"),
    ],
)
def test_bad_hyper_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@with_and_without_maximum
def test_trajectory_with_l1_and_box_equals_the_numpy_reference(dim_y):
    assert_l1_and_box_follow("FIAELT", dim_y)
