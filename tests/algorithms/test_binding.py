"""Algorithms with schedules, bound for one round after the other."""

from __future__ import annotations

import torch

from fedlightning.algorithms import FedAvg, FedPD, FedProx, LpProj
from fedlightning.algorithms.binding import in_round
from fedlightning.local import LocalSteps
from fedlightning.schedules import Exponential, Milestones
from tests.support.federations import quadratic, space_of

LIKE = torch.zeros(1, dtype=torch.float64)


def bound(algorithm):
    return algorithm.bind(space_of(quadratic(algorithm)), LIKE)


def test_an_algorithm_without_schedules_is_in_force_as_it_is():
    plain = FedAvg(0.1)
    assert in_round(plain, 5) is plain
    once = bound(plain)
    assert in_round(once, 5) is once
    assert once.binding is None
    assert once.given is plain


def test_an_algorithm_that_is_not_bound_gets_numbers():
    assert in_round(FedAvg(Exponential(0.1, gamma=0.5)), 2).lr == 0.025


def test_a_bound_algorithm_stays_bound():
    method = FedProx([Exponential(0.1, gamma=0.5), 0.2], mu=Milestones({0: 1.0, 2: 3.0}))
    first = bound(method)
    for rounds in (2, 0, 1):  # in any order, from any round's algorithm
        now = in_round(in_round(first, 7), rounds)
        assert now.lr.tolist() == [0.1 * 0.5**rounds] * 5 + [0.2] * 3
        assert now.mu == (3.0 if rounds == 2 else 1.0)
        assert now.given.lr == [0.1 * 0.5**rounds, 0.2]
        assert now.min_dim == 5
    assert first.lr.tolist() == [0.1] * 5 + [0.2] * 3


def test_the_personal_block_steps_by_the_same_schedule():
    assert in_round(bound(FedAvg(Exponential(0.1, gamma=0.5))), 3).personal_lr == 0.0125


def test_solvers_are_bound_as_well():
    now = in_round(bound(FedPD(0.2, solver=LocalSteps(lr=[Exponential(0.1, gamma=0.5), 0.2]))), 1)
    assert now.solver.lr.tolist() == [0.05] * 5 + [0.2] * 3
    assert now.solver.minimax


def test_what_is_drawn_when_an_algorithm_is_bound_is_the_same_in_every_round():
    first = bound(LpProj(Exponential(0.1, gamma=0.5), dim=4))
    x = torch.randn(8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    now = in_round(first, 6)
    assert now.sketch is first.sketch  # not drawn again
    assert torch.equal(first.sketch.project(x), bound(LpProj(0.1, dim=4)).sketch.project(x))
    other = bound(LpProj(0.1, dim=4, seed=1))
    assert not torch.equal(first.sketch.project(x), other.sketch.project(x))
