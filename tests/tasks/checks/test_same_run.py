"""Processes that were given other data or another task are told so, in all of them."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedlightning import FederatedDataModule
from fedlightning.algorithms import SCAFFOLD, FedAvg
from fedlightning.channel import Channel, Clip
from fedlightning.federation.processes import OneProcess
from fedlightning.participation import Uniform
from fedlightning.tasks.checks.same_run import described, require_same_run
from tests.support.small import Line, clients, regression_data


class Two(OneProcess):
    """The second of two processes has what is given."""

    count = 2

    def __init__(self, task, data):
        self.other = described(task, data)

    def collect(self, value):
        return [value, self.other]


def fewer():
    return FederatedDataModule.from_datasets(clients()[:3], batch_size=4, local_steps=3, rounds_per_epoch=5, seed=1)


def other_samples():
    return FederatedDataModule.from_datasets(clients(seed=5), batch_size=4, local_steps=3, rounds_per_epoch=5, seed=1)


@pytest.mark.parametrize(
    ("task", "data", "what"),
    [
        (
            lambda: Line(FedAvg(0.1)),
            regression_data,
            r"algorithm\.lr: process 0 has 0\.05, process 1 0\.1\.",
        ),
        (lambda: Line(weighting="samples"), regression_data, "weighting: process 0 has 'uniform', process 1 'samples'"),
        (
            lambda: Line(channel=Channel(client=[Clip(1.0)])),
            regression_data,
            "channel: process 0 has None, process 1 Channel",
        ),
        (Line, lambda: regression_data(seed=2), "seed: process 0 has 1, process 1 2"),
        (Line, lambda: regression_data(batch_size=5), "batch_size: process 0 has 4, process 1 5"),
        (Line, lambda: regression_data(participation=Uniform(2)), "participation: process 0 has Full"),
        (lambda: Line(SCAFFOLD(0.05)), regression_data, "algorithm: process 0 has FedAvg, process 1 SCAFFOLD"),
        (Line, other_samples, "first samples of the clients: process 0 has"),
        (Line, fewer, "number of clients: process 0 has 4, process 1 3"),
    ],
)
def test_what_differs_is_named(task, data, what):
    with pytest.raises(RuntimeError, match=rf"^{what}.*Every process runs the script by itself"):
        require_same_run(Line(), regression_data(), Two(task(), data()))


@dataclass(frozen=True, eq=False)
class Named(FedAvg):
    """Has a set, which every process lists in an order of its own, and a tensor on its device."""

    names: frozenset[str] = frozenset()
    weights: torch.Tensor | None = None


def test_what_is_the_same_passes_though_its_text_is_another():
    def made():
        return Line(Named(0.05, local_optimizer=lambda p: torch.optim.SGD(p, lr=0.1), weights=torch.ones(2)))

    assert repr(made().algorithm) != repr(made().algorithm), "each has a function of its own"
    require_same_run(made(), regression_data(), Two(made(), regression_data()))
    texts = described(Line(Named(0.05, names=frozenset("abcdefgh"))), regression_data())
    assert texts["algorithm.names"] == str(sorted(map(repr, "abcdefgh")))
    require_same_run(Line(), regression_data(), OneProcess())


def test_samples_are_the_same_up_to_the_rounding_of_machines():
    other = Two(Line(), regression_data())
    other.other["first samples of the clients"][0] *= 1 + 1e-9
    require_same_run(Line(), regression_data(), other)
