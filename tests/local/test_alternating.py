"""One block moves while the other stands still: closed forms on quadratics."""

from __future__ import annotations

import torch

from fedlightning.local.alternating import descend_personal, descend_until
from fedlightning.oracle.base import Evaluation
from fedlightning.oracle.gradient import GradientOracle
from tests.support.federations import close
from tests.support.finite_sums import CLIENTS, DIM, Samples, finite_sum

STEPS = 5


def bowl(w, v, buffers, a, blocks="both", randomness=None):
    """f(w, v) = |w|^2 / 2 + |v - 1|^2 / 2, whatever the samples."""
    return Evaluation(w, v - 1, buffers, (w.square().sum(1) + (v - 1).square().sum(1)) / 2)


def bowl_of_w(w, v, buffers, a, blocks="both", randomness=None):
    """f(w) = |w|^2 / 2."""
    return Evaluation(w, None, buffers, w.square().sum(1) / 2)


def oracle(personal=2, evaluate=bowl):
    v = torch.zeros(CLIENTS, personal, dtype=torch.float64) if personal else None
    none = torch.empty(CLIENTS, 0, dtype=torch.float64)
    return GradientOracle(Samples(finite_sum(), STEPS), evaluate, none, personal=v)


def test_a_personal_block_takes_every_minibatch_of_every_pass():
    """v - 1 shrinks by 1 - lr a step, from -1."""
    w = torch.ones(CLIENTS, DIM, dtype=torch.float64)
    v = descend_personal(w, oracle(), lr=0.2, passes=3)
    close(v, torch.full((CLIENTS, 2), 1 - 0.8 ** (3 * STEPS), dtype=torch.float64))


def test_a_clipped_personal_gradient_moves_as_far_as_its_bound():
    w = torch.ones(CLIENTS, DIM, dtype=torch.float64)
    v = descend_personal(w, oracle(), lr=0.1, clip=0.5)
    close(v.norm(dim=1), torch.full((CLIENTS,), STEPS * 0.1 * 0.5, dtype=torch.float64), 1e-5)


def test_without_a_personal_block_nothing_is_computed():
    assert descend_personal(torch.ones(CLIENTS, DIM, dtype=torch.float64), oracle(personal=0), lr=0.1) is None


def test_clients_stop_where_their_own_squared_direction_is_small():
    """w halves at every step: from length 2 it stops before the step at which |w|^2 <= tolerance."""
    w = torch.zeros(CLIENTS, DIM, dtype=torch.float64)
    w[:, 0] = 2.0
    tolerance = torch.tensor([0.0, 1.0, 100.0], dtype=torch.float64)
    computed = []
    problem = oracle(evaluate=lambda w, *arguments: computed.append(len(w)) or bowl(w, *arguments))
    ends = descend_until(w, problem.personal, problem, 0.5, lambda _, g: g, tolerance)
    close(ends[:, 0], torch.tensor([2 * 0.5**STEPS, 1.0, 2.0], dtype=torch.float64))
    assert torch.equal(w[:, 0], torch.full((CLIENTS,), 2.0, dtype=torch.float64))
    assert sum(computed) == STEPS + 2 + 1


def test_a_client_without_finite_numbers_does_not_count_as_done():
    """Its point becomes NaN as well, by which the server leaves it out."""
    w = torch.ones(CLIENTS, DIM, dtype=torch.float64)
    nothing = torch.tensor([1.0, torch.nan, 1.0], dtype=torch.float64)[:, None]
    ends = descend_until(
        w, None, oracle(personal=0, evaluate=bowl_of_w), 0.5, lambda _, g: nothing * g, torch.zeros(CLIENTS)
    )
    assert ends.isnan().all(1).tolist() == [False, True, False]
