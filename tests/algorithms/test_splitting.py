"""Splitting methods together: one lasso for all, ways to compute, personal blocks."""

from __future__ import annotations

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.local import SVRG, GradientDescent, GradientTolerance, LocalSteps
from fedlightning.oracle import Sequential, Vectorized
from tests.support.federations import run
from tests.support.lasso import SMOOTHNESS, federation, hessians, lasso, solve
from tests.support.small import Personal, regression_data, trainer

LASSO = {
    "FIAELT": (fl.FIAELT(beta=5 * SMOOTHNESS, solver=GradientDescent()), 190, 1),
    "FIAELT, own penalties": (fl.FIAELT(solver=GradientDescent()), 190, 1),
    "FedDR": (fl.FedDR(eta=0.5, alpha=1.0, solver=LocalSteps(lr=0.3)), 45, 5),
    "FedADMM": (fl.FedADMM(sigma=2.0, nu=0.6, solver=GradientDescent(lr=0.2, max_steps=20)), 100, 1),
    "FedDualAvg": (fl.FedDualAvg(lr=0.6), 40, 1),
    "FedSGDA": (fl.FedSGDA(lr=0.4), 100, 1),
}


@pytest.mark.parametrize("name", LASSO)
def test_one_convention_one_lasso(name):
    """Mean of f_i plus psi: every composite method and a centralised solver end at one point."""
    algorithm, rounds, local_steps = LASSO[name]
    loop, logs = solve(algorithm, rounds, local_steps=local_steps)
    solution = lasso()
    torch.testing.assert_close(loop.point, solution, rtol=0, atol=1e-8)
    assert torch.equal(loop.point == 0, solution == 0)
    if name.startswith("FIAELT"):
        steps = [float(log["inner_steps"]) for log in logs]
        assert max(steps[20:]) <= max(steps[:20]) <= 10
        for (hessian, linear), dual in zip(hessians(), loop.clients.all("state.z"), strict=True):
            torch.testing.assert_close(dual, linear - hessian @ loop.point, rtol=0, atol=1e-7)


@pytest.mark.parametrize(
    "algorithm",
    [
        fl.FIAELT(beta=5 * SMOOTHNESS, solver=SVRG(inner_steps=8, epochs=3)),
        fl.FIAELT(solver=GradientDescent()),
        fl.FedDR(eta=0.5),
        fl.FedDR(eta=0.5, solver=GradientDescent(), stop=GradientTolerance(1e-3)),
        fl.FedPD(eta=0.5, p=0.4, solver=LocalSteps(lr=0.1, optimizer=torch.optim.Adam), stop=GradientTolerance(1e-2)),
    ],
    ids=["svrg", "own-penalties", "estimated-step", "tolerance", "adam"],
)
def test_unequal_clients_vectorized_sequential_and_chunked_agree(algorithm):
    points = []
    for oracle in (Vectorized(), Sequential(), Vectorized(chunk_size=2), Vectorized(replay=False)):
        loop, batches = federation(algorithm, 4, batch_size=3, oracle=oracle)
        points.append(run(loop, batches))
    for other in points[1:]:
        torch.testing.assert_close(points[0], other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "solver",
    [LocalSteps(lr=0.05), GradientDescent(lr=0.05, max_steps=5), SVRG(lr=0.05, inner_steps=3, epochs=2)],
    ids=["LocalSteps", "GradientDescent", "SVRG"],
)
def test_every_solver_takes_a_personal_block(solver):
    task = Personal(fl.FedDR(eta=0.5, solver=solver))
    trainer().fit(task, regression_data())
    assert len({round(task.personalize(i).offset.item(), 3) for i in range(4)}) == 4
