"""Walks through modules meet what PyTorch's own walks meet."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from fedlightning.core.modules import named_buffers, named_modules, named_parameters, own_tensors


def shared():
    """A layer under two names, one of them deeper, beside a name without a module."""
    layer = nn.Linear(2, 2)
    net = nn.Sequential(nn.Sequential(nn.ReLU(), layer), layer, nn.BatchNorm1d(2))
    net.register_module("nothing", None)
    return net


def tied():
    """One weight in two layers."""
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    net[1].weight = net[0].weight
    return net


def metrics():
    return nn.ModuleDict({"scores": MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3)]), "net": shared()})


@pytest.mark.parametrize("make", [shared, metrics, lambda: nn.Linear(2, 3), lambda: nn.LSTM(2, 3, num_layers=2)])
def test_modules_come_in_the_order_and_under_the_names_of_pytorch(make):
    net = make()
    expected = list(net.named_modules())
    found = list(named_modules(net))
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert all(one is other for (_, one), (_, other) in zip(found, expected, strict=True))


@pytest.mark.parametrize("make", [shared, metrics, tied, lambda: nn.LSTM(2, 3, num_layers=2)])
def test_tensors_come_in_the_order_and_under_the_names_of_pytorch(make):
    net = make()
    for found, expected in (
        (named_parameters(net), net.named_parameters()),
        (named_buffers(net), net.named_buffers()),
    ):
        pairs = list(zip(found, expected, strict=True))
        assert all(name == other and one is two for (name, one), (other, two) in pairs)


def test_no_hash_is_computed():
    class Costly(nn.Module):
        def __hash__(self):
            raise AssertionError("a hash was computed")

    assert [name for name, _ in named_modules(nn.Sequential(Costly()))] == ["", "0"]


def test_own_tensors_are_parameters_and_buffers_without_those_inside():
    net = nn.BatchNorm1d(2)
    net.inside = nn.Linear(2, 2)
    net.register_buffer("absent", None)
    assert [id(t) for t in own_tensors(net)] == [
        id(t) for t in (net.weight, net.bias, net.running_mean, net.running_var, net.num_batches_tracked)
    ]
    assert own_tensors(nn.ReLU()) == []
    assert all(isinstance(t, torch.Tensor) for t in own_tensors(nn.Linear(2, 2, bias=False)))


@pytest.mark.parametrize("made", [torch.jit.script, lambda net: torch.jit.trace(net, torch.zeros(1, 2))])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_modules_of_torchscript_are_refused(made):
    task = nn.ModuleDict({"net": nn.ModuleDict({"scripted": made(nn.Sequential(nn.Linear(2, 2)))})})
    with pytest.raises(TypeError, match=r"'net.scripted' is a TorchScript module.* self.teacher = \[network\]"):
        list(named_parameters(task))
