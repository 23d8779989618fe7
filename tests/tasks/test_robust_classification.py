"""Robust classification: the worst perturbation in closed form, and a small run."""

from __future__ import annotations

import torch
from torch import nn

from fedlightning.algorithms import CDMA_ADA, FedAvg
from fedlightning.data import Digits, Shards
from fedlightning.oracle import Vectorized
from fedlightning.tasks import RobustClassification
from tests.support.small import trainer


def test_the_worst_perturbation_of_a_linear_loss_is_known():
    """With logits (w'x, 0) far in the linear part of the loss, the ascent ends at gradient / penalty."""
    task = RobustClassification(FedAvg(0.1), nn.Linear(3, 2), shape=(3,), classes=2, penalty=0.5, ascent_steps=200)
    task.ascent_lr = 0.5
    with torch.no_grad():
        task.network.weight.copy_(torch.tensor([[3.0, -1.0, 2.0], [0.0, 0.0, 0.0]]))
        task.network.bias.copy_(torch.tensor([0.0, 60.0]))
    x = torch.zeros(5, 3)
    worst, loss = task.worst_perturbation([(x[:2], torch.zeros(2).long()), (x[2:], torch.zeros(3).long())])
    expected = -torch.tensor([3.0, -1.0, 2.0]) / 0.5
    torch.testing.assert_close(worst, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(loss, torch.tensor(60 + 14 / 0.5 - 0.25 * 14 / 0.25), rtol=1e-4, atol=0)


def test_robust_training_lowers_the_robust_loss(tmp_path):
    torch.manual_seed(0)
    task = RobustClassification(CDMA_ADA(lr=[0.05, 0.5]), penalty=0.1, oracle=Vectorized())
    data = Digits(partitioner=Shards(40, shards_per_client=1), batch_size=10, local_steps=3)
    run = trainer(tmp_path, max_steps=30)
    run.validate(task, data, verbose=False)
    before = dict(run.callback_metrics)
    run.fit(task, data)
    after = run.callback_metrics
    assert after["val_robust_loss"] < before["val_robust_loss"]
    assert after["val_robust_accuracy"] <= after["val_accuracy"]
    assert after["val_worst_norm"] > 0
    assert set(task.pictures()) == {"perturbation"}
    run.test(task, data, verbose=False)
    assert "test_robust_loss" in run.callback_metrics
