"""Clients' optimizers remember their earlier rounds; the contract test compares with an independent loop."""

from __future__ import annotations

import pytest
import torch

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg, StatefulFedAvg
from fedlightning.local import SGD, Adam
from fedlightning.oracle import Sequential
from tests.support.federations import CLIENTS, close, train
from tests.support.small import Personal, clients, trainer


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


def test_moments_of_the_personal_block_are_kept_as_well():
    """With one client what is personal makes no difference."""
    ends = []
    for rounds, steps in ((4, 3), (1, 12)):
        data = FederatedDataModule.from_datasets(clients(1), batch_size=None, local_steps=steps)
        algorithm = StatefulFedAvg(0.02, local_optimizer=Adam())
        torch.manual_seed(0)
        task = Personal(algorithm, oracle=Sequential()).double()
        trainer(max_steps=rounds, precision="64-true").fit(task, data)
        ends.append(task.personalize(0).state_dict())
        assert task.client_states.first.shape == (1, 7)
    torch.testing.assert_close(*ends)
