"""What a federation may have beside an algorithm: dropout, buffers, weights, architectures, clients that stay away."""

from __future__ import annotations

import torch
from torch import nn

from fedlightning import algorithms as fl
from fedlightning.channel import Channel, Clip
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.federation.processes import OneProcess
from fedlightning.federation.sampling.round_loader import RoundLoader
from fedlightning.models import PerArchitecture, PersonalMLP
from fedlightning.participation import Devices, FirstResponders, Uniform
from fedlightning.tasks import MOON, FedCP
from tests.support.small import Line, Normed, Personal
from tests.support.transforms import Halved, Jitter, Shift

ROUNDS = 4
CHANNEL = Channel(client=[Clip(0.5), Halved(), Jitter()], server=[Shift()], download=[Jitter()])


class Wearables(Personal):
    """Sensors of three architectures before a shared line."""

    personal_parameters = ("sensor",)

    def __init__(self, algorithm):
        super().__init__(algorithm)
        del self.offset
        parts = {"wide": nn.Linear(6, 6), "normed": nn.BatchNorm1d(6), "none": nn.Identity()}
        self.sensor = PerArchitecture(parts, ["wide", "normed", "none", "normed"])

    def objective(self, batch):
        x, y = batch
        return (self.line(self.sensor(x)).squeeze(1) - y).square().mean()


class NormedWearables(Personal):
    """Sensors of three architectures before a normalisation and a line that all share."""

    personal_parameters = ("sensor",)

    def __init__(self, algorithm, **federation):
        super().__init__(algorithm, **federation)
        del self.offset
        parts = {"wide": nn.Linear(6, 6), "plain": nn.Linear(6, 6, bias=False), "none": nn.Identity()}
        self.sensor = PerArchitecture(parts, ["wide", "plain", "none", "plain"])
        self.norm = nn.BatchNorm1d(6)

    def objective(self, batch):
        x, y = batch
        return (self.line(self.norm(self.sensor(x))).squeeze(1) - y).square().mean()


class Signs:
    """Regression data as two classes."""

    def unpack(self, batch):
        x, y = batch
        return x, (y > 0).long()


class Split(Signs, FedCP):
    """Features between two heads, held near those of the received body."""


class Contrast(Signs, MOON):
    """Features drawn to those of the received body, away from those of the previous one."""


SITUATIONS = {
    "dropout": (lambda: Line(fl.FedAvg(0.05), dropout=0.3), {}, {}),
    "dropout, two phases": (lambda: Line(fl.CDMA_ADA(0.05), dropout=0.3), {}, {}),
    "averaged buffers": (lambda: Normed(fl.SCAFFOLD(0.05)), {}, {}),
    "local buffers": (lambda: Normed(fl.FedAvg(0.05)), {}, {"buffers": "local"}),
    "sample weights": (lambda: Line(fl.FedMM(0.05, mu=1.0)), {}, {"weighting": "samples"}),
    "sample weights, over all": (lambda: Line(fl.SCAFFOLD(0.05)), {}, {"weighting": "samples"}),
    "personal block": (lambda: Personal(fl.FedAPM(0.05)), {}, {}),
    "received body": (lambda: Split(fl.FedCP(0.05), PersonalMLP(6, 5, 2), 2), {}, {}),
    "received and previous body": (lambda: Contrast(fl.MOON(0.05), PersonalMLP(6, 5, 2), 2, mu=5.0), {}, {}),
    "received and previous body, channel": (
        lambda: Contrast(fl.MOON(0.05), PersonalMLP(6, 5, 2), 2, mu=5.0),
        {},
        {"channels": CHANNEL},
    ),
    "personal models": (lambda: Line(fl.Ditto(0.05)), {}, {}),
    "architectures": (lambda: Wearables(fl.FedAvg(0.05)), {}, {}),
    "architectures, dual": (lambda: Wearables(fl.SCAFFOLD(0.05)), {}, {}),
    # of two processes, the first or the second has no client in the first round
    "architectures, averaged buffers, odd clients first": (
        lambda: NormedWearables(fl.SCAFFOLD(0.05)),
        {"participation": Uniform(2), "seed": 8},
        {},
    ),
    "architectures, averaged buffers, even clients first": (
        lambda: NormedWearables(fl.SCAFFOLD(0.05)),
        {"participation": Uniform(2), "seed": 1},
        {},
    ),
    "channel, averaged buffers": (lambda: Normed(fl.SCAFFOLD(0.05)), {}, {"channels": CHANNEL}),
    "channel, architectures": (lambda: Wearables(fl.SCAFFOLD(0.05)), {}, {"channels": CHANNEL}),
    "channel, dropout, two phases": (lambda: Line(fl.CDMA_ADA(0.05), dropout=0.3), {}, {"channels": CHANNEL}),
    "some do not answer": (
        lambda: Line(fl.SCAFFOLD(0.05)),
        {"participation": FirstResponders(3, Devices(high=0.5), at_least=2, retries=0)},
        {},
    ),
}
"""By name: what makes the task, and changes of the arguments of the data and of the simulation."""


def seeded(make):
    """``make``, from the same random numbers each time and in float64."""

    def made():
        torch.manual_seed(0)
        return make().double()

    return made


def batches_of(data, task, rounds=ROUNDS, dtype=torch.float64, processes=None):
    """Rounds of a data module: the part of one of the processes that share them, each with the clients it keeps."""
    processes = OneProcess() if processes is None else processes
    data.rounds_per_epoch = rounds
    choice = TaskArchitectures(task)
    loader = RoundLoader(
        data,
        task.algorithm.phases,
        rank=processes.rank,
        world_size=processes.count,
        architecture=choice.of if choice else lambda client: "",
        by_owner=True,
    )
    return [batch.place(torch.device("cpu"), dtype) for batch in loader]
