"""Solvers and stopping rules on problems with closed forms, without a round loop."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.local import (
    SVRG,
    DecreasingTolerance,
    FixedSteps,
    GradientDescent,
    GradientTolerance,
    LocalSteps,
    RelativeDecrease,
    Subproblem,
)
from fedlightning.oracle.base import Evaluation
from fedlightning.oracle.gradient import GradientOracle
from tests.support.finite_sums import (
    CLIENTS,
    DIM,
    SAMPLES,
    Bound,
    Samples,
    evaluate,
    finite_sum,
    noisy,
    oracle_of,
    solution_of,
    subproblem,
)


@pytest.mark.parametrize("solver", [GradientDescent(max_steps=500), GradientDescent(lr=0.05, max_steps=500)])
def test_gradient_descent_finds_the_solution(solver):
    a, problem = finite_sum(), subproblem()
    result = solver.solve(torch.zeros(DIM).double(), oracle_of(Samples(a, 1)), problem, FixedSteps())
    torch.testing.assert_close(result.w, solution_of(problem, a), rtol=0, atol=1e-12)
    assert result.steps.tolist() == [500.0] * CLIENTS


def test_gradient_descent_solves_a_skew_problem_with_a_max_block():
    """With f_i = 0 in its place the bilinear x * 20 * y, steps of 1 / (weight + L) would run away."""
    skew = torch.tensor([[0.0, 20.0], [-20.0, 0.0]], dtype=torch.float64)

    def bilinear(w, v, buffers, data, blocks="both", randomness=None):
        return Evaluation(w @ skew.T, v, buffers, w.sum(1))

    problem = Subproblem(torch.ones(2, dtype=torch.float64), 5.0)
    data = Samples(finite_sum(), 1)
    oracle = GradientOracle(data, bilinear, torch.empty(CLIENTS, 0, dtype=torch.float64))
    start = torch.zeros(2, dtype=torch.float64)
    exact = torch.linalg.solve(skew + 5 * torch.eye(2).double(), 5 * torch.ones(2).double())
    solver = GradientDescent(max_steps=3000).bind(Bound(min_dim=1), start)
    result = solver.solve(start, oracle, problem, FixedSteps())
    torch.testing.assert_close(result.w, exact.expand(CLIENTS, -1), rtol=0, atol=1e-9)
    blind = GradientDescent(max_steps=3000).solve(start, oracle, problem, FixedSteps())
    assert not torch.isfinite(blind.w).all() or (blind.w - exact).norm() > 1


def test_svrg_equals_an_independent_loop():
    a, problem, m, epochs, lr = finite_sum(), subproblem(), 20, 4, 0.02
    data, seeds = Samples(a, m * epochs), [11, 7, 3]
    start = torch.zeros(CLIENTS, DIM, dtype=torch.float64)
    result = SVRG(lr=lr, inner_steps=m, epochs=epochs).solve(start, oracle_of(data, seeds), problem, FixedSteps())
    for i in range(CLIENTS):
        rows, dual, anchor = a[i].numpy(), problem.dual[i].numpy(), np.ones(DIM)
        draws = torch.rand(epochs, dtype=torch.float64, generator=torch.Generator().manual_seed(seeds[i])).numpy()
        snapshot = np.zeros(DIM)
        for epoch in range(epochs):
            full = rows.T @ (rows @ snapshot - 1) / SAMPLES
            passed = [snapshot]
            for k in range(m):
                row, w = rows[data.index[i, epoch * m + k]], passed[-1]
                g = row * (row @ w - 1) - row * (row @ snapshot - 1) + full
                passed.append(w - lr * (g + dual + problem.weight * (w - anchor)))
            snapshot = passed[int(draws[epoch] * m)]
        np.testing.assert_allclose(result.w[i].numpy(), snapshot, rtol=1e-12, atol=1e-12)
        assert float(result.steps[i]) == np.floor(draws * m).sum()


def test_svrg_gets_as_near_as_full_gradients_and_minibatch_steps_do_not():
    a, problem = finite_sum(), subproblem()
    exact, start = solution_of(problem, a), torch.zeros(DIM, dtype=torch.float64)
    svrg = SVRG(lr=0.02, inner_steps=100, epochs=30)
    near = svrg.solve(start, oracle_of(Samples(a, svrg.steps)), problem, FixedSteps()).w
    noisy = LocalSteps(lr=0.02).solve(start, oracle_of(Samples(a, svrg.steps)), problem, FixedSteps()).w
    assert (near - exact).norm() < 1e-9
    assert (noisy - exact).norm() > 1e-3


def test_looking_around_leaves_no_trace_in_the_logged_loss():
    data, problem = Samples(finite_sum(), 1), subproblem()
    oracle = oracle_of(data)
    LocalSteps().solve(torch.zeros(DIM).double(), oracle, problem, FixedSteps())
    loss = evaluate(torch.zeros(CLIENTS, DIM).double(), None, None, next(data.minibatches()).data).loss
    torch.testing.assert_close(oracle.tally.means()["loss"], loss)


def test_svrg_takes_both_gradients_with_the_same_random_numbers():
    data, problem = Samples(finite_sum(), 30), subproblem()
    solver = SVRG(lr=0.02, inner_steps=10, epochs=3)
    start = torch.zeros(DIM, dtype=torch.float64)
    exact = solver.solve(start, oracle_of(data), problem, FixedSteps())
    buffers = torch.empty(CLIENTS, 0, dtype=torch.float64)
    oracle = GradientOracle(data, noisy, buffers, evaluate_full=evaluate)
    result = solver.solve(start, oracle, problem, FixedSteps())
    torch.testing.assert_close(result.w, exact.w, rtol=1e-9, atol=1e-9)


def test_solutions_say_who_was_solved():
    data, problem = Samples(finite_sum(), 1), subproblem()
    start = torch.zeros(DIM, dtype=torch.float64)

    def solved(solver, stop):
        return solver.solve(start, oracle_of(data), problem, stop).log

    assert "solved" not in solved(GradientDescent(max_steps=3), FixedSteps())
    enough = solved(GradientDescent(max_steps=500), GradientTolerance(1e-6))
    assert enough["solved"].tolist() == [1.0] * CLIENTS
    assert solved(GradientDescent(max_steps=2), GradientTolerance(1e-6))["solved"].tolist() == [0.0] * CLIENTS


def counted(data):
    """An oracle, and the numbers of clients of all its evaluations, on minibatches and on all data."""
    minibatches, full = [], []

    def counting(numbers):
        return lambda w, *arguments: numbers.append(len(w)) or evaluate(w, *arguments)

    none = torch.empty(CLIENTS, 0, dtype=torch.float64)
    return GradientOracle(data, counting(minibatches), none, evaluate_full=counting(full)), minibatches, full


def test_svrg_computes_nothing_beyond_the_point_that_was_drawn():
    solver, start = SVRG(lr=0.02, inner_steps=30, epochs=4), torch.zeros(DIM, dtype=torch.float64)
    oracle, minibatches, full = counted(Samples(finite_sum(), solver.steps))
    result = solver.solve(start, oracle, subproblem(), FixedSteps())
    assert sum(minibatches) == 2 * result.steps.sum() < 2 * CLIENTS * solver.steps
    assert full == [CLIENTS] * solver.epochs


@pytest.mark.parametrize("solver", [GradientDescent(lr=0.05, max_steps=300), LocalSteps(lr=0.02)], ids=type)
def test_nothing_is_computed_for_clients_that_are_done(solver):
    """Each has one evaluation a step, and the last one, after which it takes none."""
    a, start = finite_sum(), torch.zeros(DIM, dtype=torch.float64)
    a[0] *= 0.1
    oracle, minibatches, full = counted(Samples(a, 300))
    rule = GradientTolerance(3.0 if isinstance(solver, LocalSteps) else 1e-4)
    result = solver.solve(start, oracle, subproblem(weight=2.0), rule)
    assert len(set(result.steps.tolist())) > 1
    assert result.solved.tolist() == [1.0] * CLIENTS
    assert sum(minibatches) + sum(full) == result.steps.sum() + CLIENTS


def test_on_all_data_only_active_clients_are_computed_and_counted():
    oracle, _, full = counted(Samples(finite_sum(), 1))
    w, active = torch.ones(CLIENTS, DIM, dtype=torch.float64), torch.tensor([True, False, True])
    everyone = oracle.full(w)
    assert not oracle.tally.counted().any()
    g, _ = oracle.full_blocks(w, active=active)
    assert torch.equal(g[active], everyone[active])
    assert not g[1].any()
    assert oracle.tally.counted().tolist() == active.tolist()
    nothing, _ = oracle.full_blocks(w, active=torch.zeros(CLIENTS, dtype=torch.bool))
    assert not nothing.any()
    assert full == [3, 2]


def test_losses_on_all_data_can_be_kept_out_of_the_log():
    oracle, *_ = counted(Samples(finite_sum(), 1))
    w = torch.ones(CLIENTS, DIM, dtype=torch.float64)
    oracle.full_blocks(w, active=torch.ones(CLIENTS, dtype=torch.bool), counts=False)
    assert not oracle.tally.counted().any()


def test_svrg_logs_the_losses_of_its_steps_alone():
    solver = SVRG(lr=0.02, inner_steps=30, epochs=4)

    def evaluating(loss):
        return lambda w, v, b, a, *_: replace(evaluate(w, v, b, a), loss=w.new_full((len(w),), loss))

    none = torch.empty(CLIENTS, 0, dtype=torch.float64)
    oracle = GradientOracle(Samples(finite_sum(), solver.steps), evaluating(1.0), none, evaluate_full=evaluating(7.0))
    solver.solve(torch.zeros(DIM, dtype=torch.float64), oracle, subproblem(), FixedSteps())
    assert oracle.tally.means()["loss"].tolist() == [1.0] * CLIENTS


@pytest.mark.parametrize("places", [[[0, 2], [1]], [[0, 1], [2]]])
def test_losses_on_all_data_keep_their_precision(places):
    class Groups(Samples):
        def full(self):
            yield from ((torch.tensor(each), self.a[each]) for each in places)

    def in_double(w, v, buffers, a, *_):
        found = evaluate(w.double(), v, buffers, a)
        return replace(found, g=found.g.to(w), loss=found.loss * 1e39)

    w = torch.ones(CLIENTS, DIM)
    oracle = GradientOracle(Groups(finite_sum(), 1), in_double, torch.empty(CLIENTS, 0))
    oracle.full_blocks(w, active=torch.ones(CLIENTS, dtype=torch.bool))
    loss = oracle.tally.means()["loss"]
    torch.testing.assert_close(loss, evaluate(w.double(), None, None, finite_sum()).loss * 1e39)


@pytest.mark.parametrize(
    "solver", [GradientDescent(max_steps=300), SVRG(inner_steps=50, epochs=20), LocalSteps(lr=0.02)], ids=type
)
def test_clients_stop_one_by_one(solver):
    """A client that is done stands still, whoever goes on; its point satisfies the rule."""
    a = finite_sum()
    a[0] *= 0.1
    problem = subproblem(weight=2.0)
    rule = GradientTolerance(3.0 if isinstance(solver, LocalSteps) else 1e-4)
    steps = solver.steps or 300
    data, start = Samples(a, steps), torch.zeros(DIM, dtype=torch.float64)
    together = solver.solve(start, oracle_of(data), problem, rule)
    assert len(set(together.steps.tolist())) > 1
    assert (together.steps < steps).all()
    if not isinstance(solver, LocalSteps):
        g = problem.operator(together.w, evaluate(together.w, together.w, together.w, a).g)
        assert (g.square().sum(1) <= rule.eps).all()
        before = (solution_of(problem, a) - together.w).norm(dim=1)
        assert (before > 1e-9).all()


@pytest.mark.parametrize(
    "solver", [GradientDescent(lr=0.1, max_steps=5), LocalSteps(lr=0.1), LocalSteps(lr=0.1, clip=0.5)], ids=repr
)
def test_personal_blocks_of_clients_that_are_done_stand_still(solver):
    """Client 0 is done at the start, the others never; the personal gradient is 1 everywhere."""

    def with_own(w, v, buffers, a, *_):
        return Evaluation(w, torch.ones_like(v), buffers, w.square().sum(1) / 2)

    object.__setattr__(solver, "personal_lr", 0.1)
    v, none = torch.zeros(CLIENTS, 1, dtype=torch.float64), torch.empty(CLIENTS, 0, dtype=torch.float64)
    oracle = GradientOracle(Samples(finite_sum(), 5), with_own, none, personal=v)
    start = torch.full((CLIENTS, DIM), 1e3, dtype=torch.float64)
    start[0] = 0.0
    problem = Subproblem(torch.zeros(DIM, dtype=torch.float64), weight=0.0)
    found = solver.solve(start, oracle, problem, GradientTolerance(1e-3))
    assert found.steps.tolist() == [0, 5, 5]
    assert found.personal[0] == 0
    assert (found.personal[1:] < -1e-4).all()


def test_step_sizes_by_prefix_reach_both_blocks():
    net = nn.Sequential(OrderedDict(body=nn.Linear(2, 1), own=nn.Linear(1, 1)))
    space = ParameterSpace(net, personal_parameters=["own"])
    bound = LocalSteps(lr={"body.bias": 0.1, "own": 0.2, "default": 0.3}).bind(space, torch.zeros(1))
    torch.testing.assert_close(bound.lr, torch.tensor([0.3, 0.3, 0.1]))
    torch.testing.assert_close(bound.personal_lr, torch.tensor([0.2, 0.2]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SVRG(lr=0.0), r"SVRG\(lr=0.0\): expected > 0, or null"),
        (lambda: SVRG(epochs=0), r"SVRG\(epochs=0\): expected >= 1"),
        (lambda: GradientDescent(max_steps=0), r"GradientDescent\(max_steps=0\): expected >= 1"),
        (lambda: LocalSteps(lr=[0.1, -1]), r"LocalSteps\(lr=\[0.1, -1\]\)"),
        (lambda: GradientTolerance(0), r"GradientTolerance\(eps=0\)"),
        (lambda: DecreasingTolerance(-1.0), r"DecreasingTolerance\(eps=-1.0\)"),
        (lambda: RelativeDecrease(1.0), r"RelativeDecrease\(r=1.0\): expected > 0 and < 1"),
    ],
)
def test_bad_values_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
