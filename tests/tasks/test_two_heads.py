"""Tasks with two heads: any network, side by side, and what they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedlightning import algorithms as fl
from fedlightning.algorithms import FedSim
from fedlightning.oracle import Sequential, Vectorized
from fedlightning.tasks import FedCP, FedRoD
from tests.support.two_heads import CLIENTS, fed_cp, fed_rod, samples, trained

WITH_FEATURES = ["HARNet", "ImageTextNet", "AudioVideoNet"]


@pytest.mark.parametrize("make", [fed_rod, fed_cp])
@pytest.mark.parametrize("name", ["TwoLayerCNN", *WITH_FEATURES])
def test_two_heads_vectorized_are_two_heads_one_by_one(name, make):
    task, other = trained(name, make, Vectorized()), trained(name, make, Sequential())
    ends = [
        torch.cat([p.flatten() for i in range(CLIENTS) for p in t.personalize(i).parameters()]) for t in (task, other)
    ]
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", WITH_FEATURES)
def test_features_are_what_the_head_sees(name):
    task, x = trained(name, fed_cp, Vectorized()), samples(name, 0)
    seen = []
    task.network.head.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    task.network(x)
    assert torch.equal(task.features(x), seen[0])
    assert torch.equal(task.below_head()(x), seen[0])
    assert not torch.equal(task.received_body(x), seen[0])  # the last round began there, and moved on


@pytest.mark.parametrize("cls", [FedRoD, FedCP])
def test_two_heads_need_a_head_and_what_it_sees(cls):
    for network in (nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), nn.ModuleDict({"head": nn.Linear(64, 10)})):
        with pytest.raises(ValueError, match=rf"{cls.__name__}\(network=.*a part 'head' and a part 'body' or a method"):
            cls(FedSim(0.1), network)


@pytest.mark.parametrize("cls", [FedRoD, FedCP])
@pytest.mark.parametrize("prefix", ["head", "head.weight"])
def test_a_global_head_that_stays_on_the_clients_is_refused(cls, prefix):
    with pytest.raises(ValueError, match=rf"{cls.__name__}\(personal=.*network.{prefix}.*Leave it out.*personal: \[\]"):
        cls(FedSim(0.1), personal=[prefix])


@pytest.mark.parametrize("cls", [FedRoD, FedCP])
@pytest.mark.parametrize("algorithm", [fl.Ditto(0.1), fl.pFedMe(0.1), fl.FedALA(0.1), fl.LpProj(0.1, dim=9)])
def test_personal_heads_beside_personal_models_are_refused(cls, algorithm):
    with pytest.raises(ValueError, match=rf"algorithm={type(algorithm).__name__}\): .*Take an algorithm without"):
        cls(algorithm)
