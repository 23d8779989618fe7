"""Least squares of several clients, gradient oracles on them, and their solutions."""

from __future__ import annotations

import torch

from fedlightning.local import Subproblem
from fedlightning.oracle.base import Evaluation
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.oracle.minibatch import Minibatch

DIM, CLIENTS, SAMPLES = 4, 3, 8


def finite_sum(seed=0):
    """Samples a of f_i(w) = mean over a of 1/2 (a'w - 1)^2, ``[S, n, d]``."""
    return torch.randn(CLIENTS, SAMPLES, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


class Samples:
    """One sample a minibatch, drawn with replacement."""

    def __init__(self, a, steps, seed=0):
        self.a = a
        self.index = torch.randint(SAMPLES, (CLIENTS, steps), generator=torch.Generator().manual_seed(seed))
        self.steps = torch.full((CLIENTS,), float(steps), dtype=torch.float64)

    def __len__(self):
        return CLIENTS

    def minibatches(self):
        for k in range(self.index.shape[1]):
            yield Minibatch.of(self.a[torch.arange(CLIENTS), self.index[:, k]][:, None])

    def full(self):
        yield torch.arange(CLIENTS), self.a


def evaluate(w, v, buffers, a, blocks="both", randomness=None):
    error = (a @ w[:, :, None]).squeeze(2) - 1
    return Evaluation((error[:, :, None] * a).mean(1), v, buffers, error.square().mean(1) / 2)


def oracle_of(data, seeds=None):
    return GradientOracle(data, evaluate, torch.empty(CLIENTS, 0, dtype=torch.float64), seeds=seeds)


def subproblem(weight=10.0, **more):
    draw = torch.Generator().manual_seed(5)
    dual = torch.randn(CLIENTS, DIM, dtype=torch.float64, generator=draw)
    return Subproblem(torch.ones(DIM, dtype=torch.float64), weight, dual, **more)


def solution_of(problem, a):
    hessian = a.mT @ a / SAMPLES + problem.weight * torch.eye(DIM, dtype=torch.float64)
    right = a.mean(1) - problem.dual + problem.weight * problem.center
    return torch.linalg.solve(hessian, right[:, :, None]).squeeze(2)


class Bound:
    """What binding needs of a parameter space."""

    def __init__(self, min_dim=DIM):
        self.shared = type(
            "Layout", (), {"min_dim": min_dim, "dim": DIM, "spread": lambda _, value, *__: float(value)}
        )()
        self.personal = type("Layout", (), {"dim": 0})()


def noisy(w, v, buffers, a, blocks="both", randomness=None):
    """As :func:`evaluate`, with noise of its own at every call, as dropout has."""
    exact = evaluate(w, v, buffers, a)
    return Evaluation(exact.g + 10 * torch.randn_like(w), v, buffers, exact.loss)
