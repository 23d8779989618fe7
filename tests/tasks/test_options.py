"""Options of training over clients: refused by name, and made into a server and clients."""

from __future__ import annotations

import pytest
import torch

from fedlightning.algorithms import FedMiD
from fedlightning.oracle import Auto, Sequential
from fedlightning.proximal import L1
from fedlightning.tasks.options import FederationOptions
from tests.support.small import Line


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"weighting": "size"}, "weighting='size': expected one of 'uniform', 'samples'"),
        ({"buffers": "global"}, "buffers='global': expected one of 'average', 'local'"),
        ({"self_check": 0}, "self_check=0: expected 'first', 'off', or a number of rounds from 1 on"),
        ({"self_check": True}, "self_check=True: expected"),
        ({"drift_parameters": "body"}, r"drift_parameters='body': expected a list of name prefixes, e.g. \[body\]"),
        ({"drift_parameters": 3}, "drift_parameters=3: expected a list"),
    ],
)
def test_values_out_of_range_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        FederationOptions(**given)


def test_defaults_measure_and_regularize_nothing():
    options = FederationOptions(drift_parameters=["body"])
    assert isinstance(options.oracle, Auto)
    assert options.drift_parameters == ("body",)
    assert not options.regularizes
    assert FederationOptions(max_regularizer=L1(0.1)).regularizes


def test_the_regularizer_is_that_of_the_shared_parameters():
    task = Line(FedMiD(0.05), regularizer={"head": L1(0.5), "body": None})
    composite = task.federation_options.composite(task.parameter_space())
    z = torch.cat([p.detach().flatten() for p in task.parameters()])
    torch.testing.assert_close(composite.value(z), 0.5 * sum(p.detach().abs().sum() for p in task.head.parameters()))
    torch.testing.assert_close(task.regularization(), composite.value(z))


def test_a_simulation_starts_at_the_task_s_parameters():
    task = Line(oracle=Sequential())
    simulation = task.federation_options.simulation(task)
    assert torch.equal(simulation.server.point, torch.cat([p.detach().flatten() for p in task.parameters()]))
    assert simulation.runner.oracle_selection.oracle == Sequential()
    assert simulation.num_clients is None
