"""What the optimizer does not have stays as it is, and can be trained again after the fit."""

from __future__ import annotations

import torch

from fedlightning import federate
from fedlightning.algorithms import FedAvg
from tests.support.lit import Lit, distance, made
from tests.support.small import regression_data, trainer


class HeadAlone(Lit):
    def configure_optimizers(self):
        return torch.optim.SGD(self.head.parameters(), lr=0.05)


def test_only_what_the_optimizer_has_is_trained_and_travels(monkeypatch):
    said = []
    monkeypatch.setattr("fedlightning.tasks.federated.frozen.rank_zero_info", said.append)
    module = made(HeadAlone)
    task = federate(module, FedAvg)
    trainer(max_steps=5).fit(task, regression_data())
    assert said == [
        "HeadAlone: 'body.0.weight' and 1 others are in no parameter group of SGD, so they stay as they are and do not "
        "travel."
    ]
    assert distance(module.body, made().body) == 0 < distance(module.head, made().head)
    assert task.server_state.z.shape == (6,)
    assert all(parameter.requires_grad for parameter in module.parameters())
