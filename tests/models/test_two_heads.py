"""Two heads as one network."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning.algorithms import FedSim
from fedlightning.models import PersonalMLP, PolicyHeads, SummedHeads
from fedlightning.oracle import Vectorized
from fedlightning.tasks import FedRoD
from tests.support.networks import SMALL
from tests.support.two_heads import fed_cp, fed_rod, samples, trained


@pytest.mark.parametrize("make", [fed_rod, fed_cp])
@pytest.mark.parametrize("name", ["TwoLayerCNN", "HARNet"])
def test_the_personal_network_is_the_personal_model(name, make, tmp_path):
    own, x = trained(name, make, Vectorized()).personalize(1), samples(name, 1)
    network = own.personal_network()
    assert isinstance(network.head, SummedHeads if make is fed_rod else PolicyHeads)
    assert torch.equal(network(x), own(x))
    assert (network(x) - own.network(x)).abs().max() > 1e-3
    torch.save(network.state_dict(), tmp_path / "client.pt")
    fresh = make(SMALL[name][0](), Vectorized()).personal_network().double()
    fresh.load_state_dict(torch.load(tmp_path / "client.pt", weights_only=True))
    assert torch.equal(fresh(x), own(x))


def test_two_linear_heads_of_fed_rod_become_one():
    torch.manual_seed(0)
    task = FedRoD(FedSim(0.1))
    nn.init.normal_(task.own_head.weight)
    plain, x = PersonalMLP(64, 32, 10), torch.randn(5, 64)
    plain.load_state_dict(task.personal_network().state_dict())
    torch.testing.assert_close(plain(x), task(x))
    assert not torch.equal(task.network(x), task(x))
