"""Tasks with two heads over any small network, and short fits of them."""

from __future__ import annotations

import torch

from fedlightning import FederatedDataModule
from fedlightning import algorithms as fl
from fedlightning.algorithms import FedSim
from fedlightning.core.tree import map_tensors
from fedlightning.data import TensorData
from fedlightning.tasks import FedCP, FedRoD
from tests.support.networks import SMALL
from tests.support.networks import features as inputs
from tests.support.small import trainer

CLIENTS = 3


def fed_rod(network, oracle, **options):
    return FedRoD(FedSim(0.1), network, oracle=oracle, **options)


def fed_cp(network, oracle, **options):
    return FedCP(fl.FedCP(0.1), network, oracle=oracle, **options)


def sets_for(name, make):
    """Three clients' samples of 3 classes; with class counts for FedRoD."""
    draw = torch.Generator().manual_seed(0)
    sets = []
    for _ in range(CLIENTS):
        y = torch.randint(3, (8,), generator=draw)
        parts = [inputs(name, SMALL[name][1], draw), y]
        if make is fed_rod:
            parts.append(torch.bincount(y, minlength=3).float().expand(8, 3))
        sets.append(TensorData(tuple(parts)))
    return sets


def trained(name, make, oracle):
    torch.manual_seed(0)
    task, sets = make(SMALL[name][0](), oracle, classes=3), sets_for(name, make)
    data = FederatedDataModule.from_datasets(sets, val=sets, batch_size=4, local_steps=2)
    trainer(max_steps=2, precision="64-true").fit(task, data)
    return task


def samples(name, client):
    return map_tensors(torch.Tensor.double, sets_for(name, fed_cp)[client][torch.arange(8)][0])
