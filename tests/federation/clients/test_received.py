"""Copies of what clients received are filled wherever clients compute."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from fedlightning import algorithms as fl
from fedlightning.algorithms.base import Point
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.federation.clients.received import ReceivedCopies
from fedlightning.models import PersonalMLP
from fedlightning.oracle import Autocast, Sequential
from fedlightning.participation import Asynchronous, FixedDuration
from tests.support.federations import loop_for, space_of
from tests.support.nodes import FederationOfNodes, Wires, nodes_of
from tests.support.situations import SITUATIONS, Split, batches_of, seeded
from tests.support.small import Line, fitted, regression_data

LATE = Asynchronous(2, 1, FixedDuration(1.0))
KEEPING = ["received body", "received and previous body"]


class Copied(nn.Module):
    """A layer, and a copy of it."""

    received_parameters: ClassVar = {"copy": "line"}

    def __init__(self, out=1, trained=False):
        super().__init__()
        self.line, self.copy = nn.Linear(2, 1), nn.Linear(2, out).requires_grad_(trained)


@dataclass(frozen=True)
class Step:
    """A message that is no point."""

    dz: torch.Tensor


def shared_of(task):
    """The line alone is shared, whatever of the copy is trained."""
    return ParameterSpace(task, constants=["copy.weight", "copy.bias"])


def body_of(loop, point):
    """The values of the received body's originals in a flat point."""
    views = space_of(loop.task).shared.views(point)
    return torch.cat([value.flatten() for name, value in views.items() if name.startswith("network.body.")])


def received(task):
    return torch.cat([p.flatten() for p in task.received_body.parameters()])


@pytest.mark.parametrize("situation", KEEPING)
def test_nodes_and_the_simulation_hold_what_their_clients_received_last(situation, tmp_path):
    make, data = seeded(SITUATIONS[situation][0]), regression_data()
    services = nodes_of(make(), Sequential(), data, [[3, 1], [0, 2]], tmp_path)
    here = loop_for(make(), Sequential())
    there = FederationOfNodes(make(), 4, Sequential(), Wires(services), services)
    points = [here.point.clone()]
    for batch in batches_of(data, make(), 3):
        for loop in (here, there):
            loop.run(batch, Autocast("cpu"))
        points.append(here.point.clone())
    assert torch.equal(here.point, there.point)
    for task in (here.task, *(service.simulation.task for service in services.values())):
        assert torch.equal(received(task), body_of(here, points[2]))
    assert not torch.equal(body_of(here, points[2]), body_of(here, points[0]))
    assert not torch.equal(body_of(here, points[2]), body_of(here, points[3]))


@pytest.mark.parametrize("situation", KEEPING)
def test_a_fit_of_lightning_holds_what_its_clients_received_last(situation):
    one, two = (SITUATIONS[situation][0]() for _ in range(2))
    two.load_state_dict(one.state_dict())
    fitted(one, regression_data(), max_steps=1, limit_val_batches=0)
    fitted(two, regression_data(), max_steps=2, limit_val_batches=0)
    after_one, after_two = (torch.cat([p.detach().flatten() for p in t.network.body.parameters()]) for t in (one, two))
    close = {"rtol": 0, "atol": 1e-6}  # the two fits may compute in two ways
    torch.testing.assert_close(received(two), after_one, **close)
    assert not torch.allclose(received(two), after_two, rtol=0, atol=1e-4)


def test_copies_have_the_point_of_the_message_where_it_is_one():
    task = Copied()
    copies = ReceivedCopies(task, space := shared_of(task))
    sent, present = torch.arange(3.0), torch.full((3,), 7.0)
    for message, expected in ((Point(sent), sent), (None, present), (Step(sent), present)):
        copies.fill(SimpleNamespace(message=message, point=present, buffers=torch.zeros(0)))
        values = space.shared.views(expected)
        assert torch.equal(task.copy.weight, values["line.weight"])
        assert torch.equal(task.copy.bias, values["line.bias"])
        assert not task.copy.weight.requires_grad


class Normed(Line):
    """Compares its statistics with those that it received, without a step of its own."""

    received_parameters: ClassVar = {"received": "norm"}

    def __init__(self, momentum=0.3):
        super().__init__(fl.FedAvg(1e-12))
        self.norm = nn.BatchNorm1d(6, momentum=momentum)
        self.received = deepcopy(self.norm).requires_grad_(False)

    def objective(self, batch):
        gap = (self.norm.running_mean - self.received.running_mean).abs().max().detach()
        self.received.eval()
        x, y = batch
        return {**super().objective((self.norm(x) + 0 * self.received(x), y)), "gap": gap.clone()}


def test_statistics_come_with_the_parameters():
    task = Normed()
    before = []
    notes = Noted(lambda: before.append((task.norm.running_mean.clone(), task.norm.num_batches_tracked.item())))
    fitted(task, regression_data(local_steps=1), max_steps=3, limit_val_batches=0, callbacks=[notes])
    assert float(task.round_metrics["train_gap"]) == 0.0
    mean, batches = before[1]
    assert torch.equal(task.received.running_mean, mean)
    assert task.received.num_batches_tracked == batches == 2
    assert not torch.equal(task.norm.running_mean, mean)


class Follows(Normed):
    """Has a copy with statistics of its own, which its objective changes."""

    def objective(self, batch):
        x, y = batch
        self.received(2 * x)
        return Line.objective(self, (self.norm(x), y))


def test_statistics_that_the_objective_changes_stay_the_copys_own():
    task = Follows()
    fitted(task, regression_data(local_steps=1), max_steps=3, limit_val_batches=0)
    assert task.norm.running_mean.abs().max() > 0.01
    torch.testing.assert_close(task.received.running_mean, 2 * task.norm.running_mean)


class Bare(Line):
    """Receives the statistics of a layer without parameters."""

    received_parameters: ClassVar = {"received": "norm"}

    def __init__(self):
        super().__init__(fl.FedAvg(0.05))
        self.norm = nn.BatchNorm1d(6, affine=False)
        self.received = deepcopy(self.norm)

    def objective(self, batch):
        x, y = batch
        self.received.eval()
        return super().objective((self.norm(x) + 0 * self.received(x), y))


def test_layers_without_parameters_have_copies():
    task, before = Bare(), []
    notes = Noted(lambda: before.append(task.norm.running_mean.clone()))
    fitted(task, regression_data(local_steps=1), max_steps=3, limit_val_batches=0, callbacks=[notes])
    assert torch.equal(task.received.running_mean, before[1])
    assert not torch.equal(before[0], before[1])


def test_copies_of_tied_layers_have_what_the_first_of_them_received():
    task = Copied()
    task.tied = nn.Linear(2, 1)
    task.tied.weight, task.tied.bias = task.line.weight, task.line.bias
    task.other = nn.Linear(2, 1).requires_grad_(False)
    task.received_parameters = {"other": "line", "copy": "tied"}
    copies = ReceivedCopies(task, space := ParameterSpace(task))
    copies.fill(SimpleNamespace(message=None, point=torch.full((3,), 7.0), buffers=torch.zeros(0)))
    assert space.shared.names == ("line.weight", "line.bias")
    for copy in (task.copy, task.other):
        assert copy.weight.eq(7).all()
        assert copy.bias.eq(7).all()


class Noted(Callback):
    def __init__(self, note):
        self.note = note

    def on_train_batch_end(self, *args):
        self.note()


@pytest.mark.parametrize("names", [{"copied": "line"}, {"copy": "lines"}])
def test_a_name_that_fits_nothing_is_answered_with_a_similar_one(names):
    task = Copied()
    task.received_parameters = names
    with pytest.raises(ValueError, match=r"received_parameters: '(copied|lines)' matches no parameter\. Did you mean"):
        ReceivedCopies(task, shared_of(task))


@pytest.mark.parametrize(("out", "trained"), [(2, False), (1, True)])
def test_what_is_no_frozen_copy_is_named(out, trained):
    task = Copied(out, trained)
    with pytest.raises(ValueError, match=r"Copied\.received_parameters: 'copy.weight' .* is no frozen copy of 'line"):
        ReceivedCopies(task, shared_of(task))


def test_clients_that_receive_models_of_their_own_are_refused():
    task = Split(fl.FedBuff(0.05), PersonalMLP(6, 5, 2), 2)
    with pytest.raises(ValueError, match="Split compares with the model that all clients of a round received"):
        fitted(task, regression_data(participation=LATE), max_steps=2, limit_val_batches=0)
