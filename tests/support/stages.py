"""Tasks and clients of unequal size for methods with stages and snapshots."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.oracle import Sequential, Vectorized
from tests.support.small import trainer


class Saddle(FederatedLightningModule):
    """A regression against a bounded adversary of the targets, in float64."""

    max_parameters = ("y",)

    def __init__(self, algorithm, **federation):
        super().__init__(algorithm, **federation)
        self.x = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.y = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def objective(self, batch):
        features, target = batch
        return 0.5 * (features @ self.x + self.y - target).square().mean() - self.y.square().sum()


class Counter(FederatedLightningModule):
    """Its parameter goes down by lr at every local step, so it counts them."""

    def __init__(self, algorithm, **federation):
        super().__init__(algorithm, **federation)
        self.x = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def objective(self, batch):
        return self.x.sum() + 0 * batch[0].sum()


def unequal(sizes=(4, 12, 20, 6), **options):
    """Clients with 1, 3, 5 and 2 minibatches a round."""
    draw = torch.Generator().manual_seed(2)
    sets = []
    for size in sizes:
        x = torch.randn(size, 3, generator=draw, dtype=torch.float64)
        sets.append(TensorDataset(x, x @ torch.randn(3, generator=draw, dtype=torch.float64)))
    return FederatedDataModule.from_datasets(sets, **{"batch_size": 4, "seed": 1, **options})


def fitted(task, rounds, **options):
    trainer(max_steps=rounds, precision="64-true").fit(task, unequal(**options))
    return task


ORACLES = [Sequential(), *(Vectorized(chunk_size=size) for size in (1, 2, 3, None))]


under_server_optimizers = pytest.mark.parametrize("server", [partial(torch.optim.SGD, lr=0.1), torch.optim.Adam])
"""Marks tests that are run once with server SGD and once with Adam."""


def assert_stages_begin_at_the_model(algorithm, server, reference="reference", begins=lambda state: not state.steps):
    """In the rounds in which a stage begins, and in no others, it refers to the point a server optimizer moved to."""
    began = stayed = 0
    for rounds in range(1, 7):
        task = fitted(Saddle(algorithm, server_optimizer=server, oracle=Sequential()), rounds, local_steps=2)
        state = task.server_state
        gap = (getattr(state, reference) - state.z[: len(getattr(state, reference))]).norm()
        just_begun = bool(begins(state))
        began, stayed = began + just_begun, stayed + (not just_begun)
        assert (gap == 0) == just_begun
    assert began
    assert stayed
