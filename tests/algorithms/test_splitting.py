"""Splitting methods: one lasso for all, FIAELT's claims, partial participation, skipped communication."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning import algorithms as fl
from fedlightning.algorithms.base import PerClient
from fedlightning.algorithms.fed_skip import Upload
from fedlightning.data.module import RoundLoader
from fedlightning.local import (
    SVRG,
    DecreasingTolerance,
    FixedSteps,
    GradientDescent,
    GradientTolerance,
    LocalSteps,
)
from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.participation import Full, Uniform
from fedlightning.proximal import L1, compose
from tests.federations import loop_for, quadratic, rounds_of, run, train
from tests.small import Personal, regression_data, trainer

SIZES = (12, 8, 12, 12, 8)
FEATURES = 6
WEIGHT = 0.3


class Line(FederatedLightningModule):
    """Least squares; with L1 the lasso."""

    def __init__(self, algorithm, **federation):
        super().__init__(algorithm, **federation)
        self.x = nn.Parameter(torch.full((FEATURES,), 0.5, dtype=torch.float64))

    def objective(self, batch):
        features, target = batch
        return (features @ self.x - target).square().mean() / 2


def samples():
    """Clients of unequal size and different truths; eigenvalues of their Hessians lie between 1 and 2."""
    draw = torch.Generator().manual_seed(0)
    truth = torch.tensor([2.0, -1.5, 1.0, 0.0, 0.0, 0.1], dtype=torch.float64)
    clients = []
    for n in SIZES:
        left = torch.linalg.qr(torch.randn(n, FEATURES, dtype=torch.float64, generator=draw)).Q
        right = torch.linalg.qr(torch.randn(FEATURES, FEATURES, dtype=torch.float64, generator=draw)).Q
        features = n**0.5 * left * torch.linspace(1, 2**0.5, FEATURES).double() @ right
        own = truth + 0.5 * torch.randn(FEATURES, dtype=torch.float64, generator=draw)
        clients.append((features, features @ own))
    return clients


def hessians():
    return [(a.T @ a / len(a), a.T @ b / len(a)) for a, b in samples()]


def lasso():
    """Proximal gradient on mean_i f_i + 0.3 * ||x||_1, all in one place."""
    hessian = sum(h for h, _ in hessians()).numpy() / len(SIZES)
    linear = sum(q for _, q in hessians()).numpy() / len(SIZES)
    step, x = 1 / np.linalg.eigvalsh(hessian).max(), np.zeros(FEATURES)
    for _ in range(5000):
        x = x - step * (hessian @ x - linear)
        x = np.sign(x) * np.maximum(np.abs(x) - step * WEIGHT, 0)
    return torch.from_numpy(x)


SMOOTHNESS = max(float(torch.linalg.eigvalsh(h).max()) for h, _ in hessians())


def federation(algorithm, rounds, batch_size=None, local_steps=20, participation=None, oracle=None, seed=0):
    """A loop on the lasso and its rounds."""
    task = Line(algorithm)
    data = FederatedDataModule.from_datasets(
        [TensorDataset(*client) for client in samples()],
        batch_size=batch_size,
        local_steps=local_steps,
        participation=participation or Full(),
        rounds_per_epoch=rounds,
        seed=seed,
    )
    loop = loop_for(task, oracle, regularizer=compose(task.parameter_space().shared, L1(WEIGHT), None))
    loader = RoundLoader(data, algorithm.phases)
    return loop, (batch.place(torch.device("cpu"), torch.float64) for batch in loader)


def solve(algorithm, rounds, **options):
    """The loop after some rounds, and what each logged."""
    loop, batches = federation(algorithm, rounds, **options)
    return loop, [loop.run(batch, Autocast("cpu")).metrics for batch in batches]


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


def test_the_test_of_fiaelt_implies_its_criterion():
    """||x+ - x*||^2 <= r * ||x_i - x*||^2, by the closed form of x*."""
    beta, r = 5 * SMOOTHNESS, 0.005
    algorithm = fl.FIAELT(beta=beta, r=r, solver=GradientDescent())
    loop, batches = federation(algorithm, 10)
    for batch in batches:
        y = loop.point
        started = loop.runner.clients.has_states
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


def test_estimated_penalties_under_partial_participation():
    loop, _ = solve(fl.FIAELT(solver=GradientDescent()), 310, participation=Uniform(3))
    torch.testing.assert_close(loop.point, lasso(), rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        (fl.FedDR(eta=0.5, alpha=1.0, solver=LocalSteps(lr=0.3)), 260),
        (fl.FIAELT(beta=2 * SMOOTHNESS, smoothness=SMOOTHNESS, solver=GradientDescent()), 420),
        (fl.FedADMM(sigma=2.0, nu=0.6, solver=GradientDescent(lr=0.2, max_steps=20)), 400),
    ],
    ids=["FedDR", "FIAELT", "FedADMM"],
)
def test_a_fifth_of_the_clients_at_a_time_reaches_the_same_point(algorithm, rounds):
    loop, _ = solve(algorithm, rounds, local_steps=5, participation=Uniform(fraction=0.2))
    torch.testing.assert_close(loop.point, lasso(), rtol=0, atol=1e-8)


def test_means_over_all_clients_are_exact_from_the_first_round_on():
    """Clients never sampled count with their start: FedDR's server holds the mean of 2 x_i - y_i over all N."""
    loop, batches = federation(fl.FedDR(eta=0.5), 6, participation=Uniform(1))
    for batch in batches:
        loop.run(batch, Autocast("cpu"))
        reflections = 2 * loop.clients.all("state.x") - loop.clients.all("state.y")
        torch.testing.assert_close(loop.state.xhat, reflections.mean(0), rtol=1e-12, atol=1e-12)
    assert len(loop.clients.seen) < len(SIZES)


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


def test_skipped_communication_costs_nothing():
    algorithm = fl.FedPD(eta=0.5, p=0.5, seed=1)
    task = quadratic(algorithm)
    loop, d = loop_for(task), 8
    up = down = 0
    for t, batch in enumerate(rounds_of(algorithm, 12)):
        before = loop.point
        loop.run(batch, Autocast("cpu"))
        down += 0 if t and algorithm.skips(t - 1) else 6 * d
        up += 0 if algorithm.skips(t) else 6 * d
        assert (loop.upload, loop.download) == (up, down)
        assert torch.equal(before, loop.point) == algorithm.skips(t)
    assert 0 < sum(algorithm.skips(t) for t in range(12)) < 12


def test_fed_skip_with_a_mean_in_every_round_is_fed_avg():
    skip, avg = fl.FedSkip(lr=0.05, period=1), fl.FedAvg(lr=0.05)
    batches = rounds_of(avg, 5, size=4)
    assert torch.equal(run(loop_for(quadratic(skip)), batches), run(loop_for(quadratic(avg)), batches))


def test_fed_skip_hands_every_model_to_one_client():
    algorithm = fl.FedSkip(lr=0.05, period=100, seed=3)
    ids = [4, 0, 7, 2]
    routes = [algorithm.shuffled(torch.tensor(ids), t).tolist() for t in range(5)]
    assert all(sorted(route) == sorted(ids) for route in routes)
    assert len({tuple(route) for route in routes}) > 1
    server = algorithm.init_server(torch.zeros(1))
    models = PerClient(torch.zeros(1), torch.tensor(ids), torch.tensor([[4.0], [0.5], [7.0], [2.0]]))
    after = algorithm.server_update(server, Upload(models))
    assert dict(zip(after.clients.tolist(), after.models[:, 0].tolist(), strict=True)) == dict(
        zip(routes[0], [4.0, 0.5, 7.0, 2.0], strict=True)
    )
    later = algorithm.server_update(after, Upload(PerClient(torch.zeros(1), torch.tensor([4]), torch.tensor([[9.0]]))))
    assert sorted(later.clients.tolist()) == sorted(ids)
    assert PerClient(later.z, later.clients, later.models).of([4, 5]).flatten().tolist() == [9.0, 0.0]


@pytest.mark.parametrize(
    "solver",
    [LocalSteps(lr=0.05), GradientDescent(lr=0.05, max_steps=5), SVRG(lr=0.05, inner_steps=3, epochs=2)],
    ids=["LocalSteps", "GradientDescent", "SVRG"],
)
def test_every_solver_takes_a_personal_block(solver):
    task = Personal(fl.FedDR(eta=0.5, solver=solver))
    trainer().fit(task, regression_data())
    assert len({round(task.personalize(i).offset.item(), 3) for i in range(4)}) == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fl.FIAELT(beta=-1.0), r"FIAELT\(beta=-1.0\): expected > 0"),
        (lambda: fl.FIAELT(beta=1.0, r=1.0), r"FIAELT\(r=1.0\): expected > 0 and < 1"),
        (lambda: fl.FedDR(eta=1.0, alpha=2.0), r"FedDR\(alpha=2.0\): expected > 0 and < 2"),
        (lambda: fl.FedPD(eta=1.0, p=1.0), r"FedPD\(p=1.0\): expected >= 0 and < 1"),
        (lambda: fl.FedADMM(sigma=1.0, nu=1.0), r"FedADMM\(nu=1.0\): expected > 0 and < 1"),
        (lambda: fl.FedSkip(lr=0.1, period=0), r"FedSkip\(period=0\): expected >= 1"),
    ],
)
def test_bad_hyper_parameters_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("algorithm", [fl.FedDR(eta=0.1), fl.FedAPM(lr=0.1)], ids=["FedDR", "FedAPM"])
def test_a_server_optimizer_cannot_move_what_is_computed(algorithm):
    with pytest.raises(ValueError, match=f"{type(algorithm).__name__} computes the point from its server state"):
        quadratic(algorithm, server_clip=1.0)


@pytest.mark.parametrize("algorithm", [fl.FIAELT, fl.FedADMM], ids=["FIAELT", "FedADMM"])
def test_a_rule_of_the_users_replaces_the_methods_own(algorithm):
    penalty = {"beta": 50.0} if algorithm is fl.FIAELT else {"sigma": 50.0}
    given = algorithm(**penalty, solver=GradientDescent(max_steps=7), stop=FixedSteps())
    own = algorithm(**penalty, solver=GradientDescent(max_steps=7))
    assert {float(log["inner_steps"]) for log in solve(given, 4)[1]} == {7.0}
    assert min(float(log["inner_steps"]) for log in solve(own, 4)[1]) < 7


def test_fixed_steps_is_the_default():
    assert isinstance(fl.FedSplit(s=0.1).own_rule, FixedSteps)


def test_fed_pd_is_exact_with_all_clients_only():
    """With half of them a round z follows the cohorts: a mean over those who answered."""
    fed_pd = fl.FedPD(eta=0.5, solver=LocalSteps(lr=0.1))
    ends = []
    for size in (None, 3):
        task, loop, _ = train(fed_pd, rounds=20, size=size, local_steps=10)
        ends.append(float((loop.point - task.solution).norm()))
    assert ends[0] < 0.02
    assert ends[1] > 0.5
    assert "FedADMM does" in fed_pd.partial_cohorts


def test_clients_whose_solver_has_nothing_to_do_count_in_no_loss():
    """SVRG may draw an epoch of no steps; such a client evaluates nothing, beside others or alone."""
    algorithm = fl.FIAELT(beta=5.0, solver=SVRG(inner_steps=2, epochs=1))
    losses = []
    for oracle in (Sequential(), Vectorized()):
        loop = loop_for(quadratic(algorithm), oracle)
        losses.append([float(loop.run(b, Autocast("cpu")).metrics["train_loss"]) for b in rounds_of(algorithm, 5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-10)
