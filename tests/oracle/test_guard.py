"""What an objective keeps in Python, from the start or from a later round on, is kept as one by one."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.oracle import Sequential, Vectorized
from tests.support.small import clients, trainer

LATE = 2


class Line(FederatedLightningModule):
    def __init__(self, **federation):
        super().__init__(FedAvg(0.05), **federation)
        self.line = nn.Linear(6, 1).double()
        self.start = None
        self.weight = torch.ones((), dtype=torch.float64)
        self.count = 0

    def error(self, batch):
        x, y = batch
        return (self.line(x).squeeze(1) - y).square().mean()


class NearItsStart(Line):
    """A copy of the weights at the first evaluation, equal wherever one looks at one point only."""

    def objective(self, batch):
        w = self.line.weight
        if self.start is None:
            self.start = w.detach().clone()
        return self.error(batch) + (w - self.start).square().sum()


class NearItsStartInADict(Line):
    def __init__(self, **federation):
        super().__init__(**federation)
        self.memo = {}

    def objective(self, batch):
        w = self.line.weight
        start = self.memo.setdefault("w", w.detach().clone())
        return self.error(batch) + (w - start).square().sum()


class LateAttribute(Line):
    """An attribute that is not there before the third round."""

    def objective(self, batch):
        loss = self.error(batch)
        if self.global_step >= LATE:
            self.late = 0.5 * getattr(self, "late", torch.ones(())) + 0.5 * loss.detach()
            loss = loss * self.late
        return loss


class LateDecay(Line):
    def objective(self, batch):
        if self.global_step >= LATE:
            self.weight = self.weight * 0.9
        return self.error(batch) * self.weight


class LateCounter(Line):
    def objective(self, batch):
        self.count += self.global_step >= LATE
        return self.error(batch) * (1 + 0.1 * self.count)


class LateNoise(Line):
    def objective(self, batch):
        return self.error(batch) * (1 + np.random.rand() if self.global_step >= LATE else 1.0)


class Layer(nn.Module):
    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return x * (1 + 0.01 * type(self).calls)


class CountsInALayersClass(Line):
    def __init__(self, **federation):
        super().__init__(**federation)
        self.layer = Layer()

    def objective(self, batch):
        return self.layer(self.error(batch))


def scaled(loss):
    scaled.calls += 1
    return loss * (1 + 0.01 * scaled.calls)


class CountsInAFunction(Line):
    def objective(self, batch):
        return scaled(self.error(batch))


def points(make, oracle, rounds=4):
    torch.manual_seed(0)
    np.random.seed(0)
    Layer.calls = scaled.calls = 0
    task = make(oracle=oracle)
    data = FederatedDataModule.from_datasets(clients(), batch_size=4, local_steps=5, seed=1, rounds_per_epoch=rounds)
    trainer(max_steps=rounds, precision="64-true").fit(task, data)
    return torch.cat([parameter.detach().flatten() for parameter in task.parameters()])


@pytest.mark.parametrize("oracle", [partial(Vectorized, chunk_size=3), lambda: None], ids=["batched", "default"])
@pytest.mark.parametrize(
    "make",
    [
        NearItsStart,
        NearItsStartInADict,
        LateAttribute,
        LateDecay,
        LateCounter,
        LateNoise,
        CountsInALayersClass,
        CountsInAFunction,
    ],
)
def test_what_is_kept_in_python_counts_as_one_by_one(make, oracle):
    torch.testing.assert_close(points(make, oracle()), points(make, Sequential()), rtol=1e-12, atol=1e-12)


class Normed(Line):
    """The old weight norm, which writes the weight of its layer anew before every call."""

    def __init__(self, **federation):
        super().__init__(**federation)
        with pytest.warns(FutureWarning):
            self.line = nn.utils.weight_norm(self.line)

    def objective(self, batch):
        return self.error(batch)


def test_what_every_call_writes_anew_stays_batched(capsys):
    task = Normed(oracle=Vectorized(chunk_size=3))
    trainer(max_steps=3, precision="64-true").fit(
        task, FederatedDataModule.from_datasets(clients(), batch_size=4, local_steps=5, seed=1)
    )
    assert isinstance(task.run.simulation.runner.ways.oracle, Vectorized)
