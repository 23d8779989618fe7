"""Classification learns, and penalties count in what is minimised."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedAvg, FedSGDA
from fedlightning.data import Digits
from fedlightning.oracle import Vectorized
from fedlightning.proximal import L1
from fedlightning.tasks import Classification
from tests.support.small import trainer


def test_classification_learns_the_digits():
    torch.manual_seed(0)
    task = Classification(FedAvg(0.05), oracle=Vectorized())
    data = Digits(local_epochs=1, batch_size=10, rounds_per_epoch=10)
    fit = trainer(max_steps=20)
    fit.fit(task, data)
    assert fit.callback_metrics["val_accuracy"] > 0.85
    (tested,) = fit.test(task, data, verbose=False)
    assert set(tested) == {"test_accuracy", "test_f1", "test_loss"}


def test_the_penalty_belongs_to_what_is_minimised():
    task = Classification(FedSGDA(0.05), regularizer={"network": L1(0.1)})
    fit = trainer(max_steps=2)
    fit.fit(task, Digits(batch_size=10, local_steps=1, validate_train=True, rounds_per_epoch=2))
    (tested,) = fit.test(task, fit.datamodule, verbose=False)
    penalty = 0.1 * sum(float(p.detach().abs().sum()) for p in task.network.parameters())
    assert tested["test_objective"] - tested["test_loss"] == pytest.approx(penalty, rel=1e-4)
    assert task.regularization() == pytest.approx(penalty, rel=1e-5)
    assert Classification(FedSGDA(0.05)).regularization() is None
