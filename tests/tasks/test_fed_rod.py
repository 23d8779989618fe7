"""FedRoD: its objective sample by sample, and both of its models."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedlightning.algorithms import FedSim
from fedlightning.oracle import Vectorized
from fedlightning.tasks import FedRoD
from tests.support.personal_data import counted
from tests.support.small import trainer


def test_fed_rod_objective_sample_by_sample():
    task = FedRoD(FedSim(0.1))
    x, y, counts = batch = counted().federation.train[torch.arange(5)]
    total = 0.0
    for i in range(5):
        f = task.network.body(x[i : i + 1])
        generic, own = task.network.head(f)[0], task.own_head(f)[0]
        weights = counts[i].clamp(min=1e-8) * generic.exp()
        total = total - (weights[y[i]] / weights.sum()).log() - (generic + own).log_softmax(0)[y[i]]
    torch.testing.assert_close(task.objective(batch)["loss"], total / 5)


def test_the_personal_loss_of_fed_rod_trains_the_personal_head_alone():
    task = FedRoD(FedSim(0.1))
    batch = counted().federation.train[torch.arange(5)]
    task.objective(batch)["personal_loss"].backward()
    assert task.own_head.weight.grad.abs().max() > 0
    assert all(p.grad is None for p in task.network.parameters())
    task.zero_grad()
    task.objective(batch)["generic_loss"].backward()
    assert task.own_head.weight.grad is None or task.own_head.weight.grad.abs().max() == 0
    assert task.network.head.weight.grad.abs().max() > 0


@pytest.mark.filterwarnings("ignore:No positive samples")
def test_fed_rod_evaluates_both_models():
    task, data = FedRoD(FedSim(0.1), oracle=Vectorized()), counted(batch_size=20, local_steps=10)
    fit = trainer(max_steps=5, val_check_interval=5, check_val_every_n_epoch=None)
    fit.fit(task, data)
    federation = data.federation
    generic, losses = [], []
    for i, own in enumerate(federation.val_partition):
        x, y, _ = federation.val[own]
        with torch.no_grad():
            generic.append((task.network(x).argmax(1) == y).float().mean())
            losses.append(F.cross_entropy(task.personalize(i)(x), y))
    torch.testing.assert_close(fit.callback_metrics["val_global_accuracy"], torch.stack(generic).mean())
    torch.testing.assert_close(fit.callback_metrics["val_loss"], torch.stack(losses).mean())
    assert fit.callback_metrics["val_accuracy"] > 0.3
    assert not torch.equal(task.personalize(0).own_head.weight, task.personalize(1).own_head.weight)
