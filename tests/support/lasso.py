"""A lasso over clients of unequal size, its solution by a solver that sees all data, and loops on it."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.data import RoundLoader
from fedlightning.local import FixedSteps, GradientDescent
from fedlightning.oracle import Autocast
from fedlightning.participation import Full, Uniform
from fedlightning.proximal import L1, compose
from tests.support.federations import loop_for, space_of

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
    loop = loop_for(task, oracle, regularizer=compose(space_of(task).shared, L1(WEIGHT), None))
    loader = RoundLoader(data, algorithm.phases)
    return loop, (batch.place(torch.device("cpu"), torch.float64) for batch in loader)


def solve(algorithm, rounds, **options):
    """The loop after some rounds, and what each logged."""
    loop, batches = federation(algorithm, rounds, **options)
    return loop, [loop.run(batch, Autocast("cpu")).metrics for batch in batches]


def assert_a_fifth_of_the_clients_at_a_time_solves_it(algorithm, rounds):
    """One client of five a round leads to the solution that sees all data."""
    loop, _ = solve(algorithm, rounds, local_steps=5, participation=Uniform(fraction=0.2))
    torch.testing.assert_close(loop.point, lasso(), rtol=0, atol=1e-8)


def assert_a_given_rule_replaces_the_methods_own(make, **penalty):
    """Under fixed steps every client takes all steps of its solver; under the method's own rule some take fewer."""
    given = make(**penalty, solver=GradientDescent(max_steps=7), stop=FixedSteps())
    own = make(**penalty, solver=GradientDescent(max_steps=7))
    assert {float(log["inner_steps"]) for log in solve(given, 4)[1]} == {7.0}
    assert min(float(log["inner_steps"]) for log in solve(own, 4)[1]) < 7
