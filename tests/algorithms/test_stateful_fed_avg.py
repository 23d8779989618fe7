"""Clients' optimizers remember their earlier rounds; the contract test compares with an independent loop."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedAvg, FedSim, StatefulFedAvg
from fedlightning.local import SGD, Adam
from tests.support.federations import CLIENTS, close, train
from tests.support.small import Personal, regression_data, trainer


def test_without_momentum_it_is_fed_avg():
    close(train(StatefulFedAvg(0.05), size=3)[2], train(FedAvg(0.05), size=3)[2])


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam()], ids=["momentum", "Adam"])
def test_rounds_of_one_client_are_one_long_round(optimizer):
    many = train(StatefulFedAvg(0.02, local_optimizer=optimizer), rounds=4, local_steps=3, num_clients=1)[2]
    one = train(FedAvg(0.02, local_optimizer=optimizer), rounds=1, local_steps=12, num_clients=1)[2]
    forgetful = train(FedAvg(0.02, local_optimizer=optimizer), rounds=4, local_steps=3, num_clients=1)[2]
    close(many[-1], one[-1], 1e-10)
    assert (forgetful[-1] - one[-1]).abs().max() > 1e-3


def test_every_client_counts_its_own_steps():
    loop = train(StatefulFedAvg(0.02, local_optimizer=Adam()), rounds=3, size=2, local_steps=3)[1]
    steps = loop.clients.all("state.steps")
    assert steps.sum() == 3 * 2 * 3
    assert 0 in steps.tolist() or len(set(steps.tolist())) > 1
    assert steps.shape == (CLIENTS,)


def test_a_torch_optimizer_is_refused():
    with pytest.raises(TypeError, match=r"StatefulFedAvg\(local_optimizer=Adam\): expected a LocalOptimizer object"):
        StatefulFedAvg(0.1, local_optimizer=torch.optim.Adam)


def test_personal_parameters_are_refused():
    assert FedSim is FedAvg
    with pytest.raises(ValueError, match="StatefulFedAvg keeps the moments of shared parameters alone"):
        trainer(max_steps=1).fit(Personal(StatefulFedAvg(0.05)), regression_data())
