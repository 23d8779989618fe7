"""Objectives of the fuzz, evaluated one by one, beside a loop of plain PyTorch that knows nothing of the library."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule, FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.oracle import ObjectiveError, Sequential
from tests.support.objectives import UnsuitableError, reseed
from tests.support.small import trainer
from tests.support.written import written_cases

STEPS = 6
REFUSED = {
    "checkpoint",
    "checkpoint, reentrant",
    "convolution, written into through a view",
    "embedding, max_norm",
    "momentum encoder in place",
    "weights clipped by data.clamp_",
}


class Task(FederatedLightningModule):
    """Any network with any loss."""

    def __init__(self, network, setting):
        super().__init__(FedAvg(setting.lr), oracle=Sequential())
        self.network, self.setting = network, setting

    def objective(self, batch):
        return self.setting.loss(self.network, batch)


@cache
def comparable():
    """The written cases that draw no random numbers and keep nothing outside their network, by name."""
    found = {}
    for case in written_cases():
        try:
            setting = case.make()
        except UnsuitableError:
            continue
        if not (setting.random or setting.outside):
            found[case.name.removeprefix("written:")] = setting
    return found


def made(setting):
    reseed()
    return setting.network().double()


def batch_of(setting):
    return tuple(tensor[: setting.batch_size] for tensor in setting.data[0])


def by_hand(network, setting):
    """Trains a network on the first client's first minibatch."""
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], setting.lr)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = setting.loss(network, tuple(tensor.clone() for tensor in batch_of(setting)))
        (loss["loss"] if isinstance(loss, dict) else loss).backward()
        optimizer.step()
    return network.state_dict()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", comparable())
def test_one_client_is_a_plain_loop(name):
    setting = comparable()[name]
    expected = by_hand(made(setting), setting)
    data = FederatedDataModule.from_datasets(
        [TensorDataset(*batch_of(setting))], batch_size=None, local_steps=STEPS // 2, rounds_per_epoch=2
    )
    task = Task(made(setting), setting)
    if name in REFUSED:
        with pytest.raises(ObjectiveError, match=r"in the backward pass|writes into"):
            trainer(max_steps=2).fit(task, data)
        return
    trainer(max_steps=2).fit(task, data)
    for key, value in task.network.state_dict().items():
        torch.testing.assert_close(value, expected[key], rtol=1e-9, atol=1e-9)
