"""Processes that were given other data or another task are told so, in all of them."""

from __future__ import annotations

import pytest

from fedlightning import FederatedDataModule
from fedlightning.algorithms import FedAvg
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
            r"algorithm: process 0 has FedAvg\(lr=0\.05.*, process 1 Fed",
        ),
        (lambda: Line(weighting="samples"), regression_data, "weighting: process 0 has 'uniform', process 1 'samples'"),
        (
            lambda: Line(channel=Channel(client=[Clip(1.0)])),
            regression_data,
            "channel: process 0 has None, process 1 ",
        ),
        (Line, lambda: regression_data(seed=2), "seed: process 0 has 1, process 1 2"),
        (Line, lambda: regression_data(batch_size=5), "batch_size: process 0 has 4, process 1 5"),
        (Line, lambda: regression_data(participation=Uniform(2)), "participation: process 0 has Full"),
        (Line, other_samples, "first samples of the clients: process 0 has"),
        (Line, fewer, "number of clients: process 0 has 4, process 1 3"),
    ],
)
def test_what_differs_is_named(task, data, what):
    with pytest.raises(RuntimeError, match=rf"^{what}.*Every process runs the script by itself"):
        require_same_run(Line(), regression_data(), Two(task(), data()))


def test_the_same_run_passes():
    require_same_run(Line(), regression_data(), Two(Line(), regression_data()))
    require_same_run(Line(), regression_data(), OneProcess())
    functions = [Line(channel=Channel(client=[Clip(1.0)])) for _ in range(2)]
    require_same_run(functions[0], regression_data(), Two(functions[1], regression_data()))
