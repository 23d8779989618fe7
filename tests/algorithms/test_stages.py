"""Methods with stages and snapshots: where they refer to, and how long their rounds are."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import CODASCA, CatalystScaffoldS, CODAPlus, LocalSGDAPlus
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


def test_catalyst_takes_the_same_steps_with_every_client_in_any_chunking():
    algorithm = CatalystScaffoldS(lr=1.0, p=0.1, theta=0.0, stage_steps=10**9, seed=2)
    steps = algorithm.steps_of(0)
    assert steps > 5  # more than any client's minibatches
    for oracle in ORACLES:
        assert fitted(Counter(algorithm, oracle=oracle), 1).x.item() == -steps


@pytest.mark.parametrize("p", [0.5, 0.1])
def test_catalyst_on_unequal_clients_does_not_depend_on_the_chunking(p):
    algorithm = CatalystScaffoldS(lr=0.05, p=p, theta=0.3, stage_steps=7)
    points = [fitted(Saddle(algorithm, oracle=oracle), 6).server_state.z for oracle in ORACLES]
    assert (points[0] - 1).abs().max() > 1e-2
    for other in points[1:]:
        torch.testing.assert_close(other, points[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("server", [partial(torch.optim.SGD, lr=0.1), torch.optim.Adam])
@pytest.mark.parametrize(
    ("algorithm", "reference"),
    [
        (CODAPlus(lr=0.1, theta=1.0, stage_steps=4), "reference"),
        (CODASCA(lr=0.1, theta=1.0, stage_steps=4), "reference"),
        (LocalSGDAPlus(lr=0.1, refresh=2), "snapshot"),
        (CatalystScaffoldS(lr=0.1, p=0.5, stage_steps=4), "reference"),
    ],
    ids=["coda+", "codasca", "local-sgda+", "catalyst"],
)
def test_stages_begin_at_the_model_a_server_optimizer_moved_to(algorithm, reference, server):
    began = stayed = 0
    for rounds in range(1, 7):
        task = fitted(Saddle(algorithm, server_optimizer=server, oracle=Sequential()), rounds, local_steps=2)
        state = task.server_state
        gap = (getattr(state, reference) - state.z[: len(getattr(state, reference))]).norm()
        just_begun = state.t % 2 == 0 if reference == "snapshot" else not state.steps
        began, stayed = began + just_begun, stayed + (not just_begun)
        assert (gap == 0) == just_begun
    assert began
    assert stayed
