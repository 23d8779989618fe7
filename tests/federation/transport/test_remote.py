"""Nodes that get bytes and keep files run every algorithm as the simulation does."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch

from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.participation import Uniform
from fedlightning.tasks import ClientNumbers
from tests.support.cases import CASES
from tests.support.federations import CLIENTS, K, loop_for, personal_quadratic, quadratic, rounds_of
from tests.support.nodes import FederationOfNodes, Wires, nodes_of, rows_of
from tests.support.situations import ROUNDS, SITUATIONS, batches_of, seeded
from tests.support.small import regression_data

NODES = [[0], [4, 1], [2, 3, 5]]
NUMBERS = ClientNumbers(CLIENTS, local_steps=K, seed=0)


def both(make, data, batches, holdings, folder, oracle=None, **options):
    """The same rounds in one process and by nodes."""
    oracle = Sequential() if oracle is None else oracle
    here = loop_for(make(), oracle, **options)
    carrier = Wires(nodes_of(make(), oracle, data, holdings, folder, **options))
    there = FederationOfNodes(make(), sum(map(len, holdings)), oracle, carrier, **options)
    results = [[loop.run(batch, Autocast("cpu")) for loop in (here, there)] for batch in batches]
    return here, there, results


def assert_same(here, there, results, folder, holdings, close=torch.equal):
    assert close(here.point, there.point)
    assert (here.server.buffers is None) == (there.server.buffers is None)
    if here.server.buffers is not None:
        assert close(here.server.buffers, there.server.buffers)
    assert here.server.traffic == there.server.traffic
    for mine, theirs in results:
        assert mine.metrics.keys() == theirs.metrics.keys()
        assert (mine.undone, mine.overflow) == (theirs.undone, theirs.overflow)
        for name, value in mine.metrics.items():
            torch.testing.assert_close(torch.as_tensor(value), torch.as_tensor(theirs.metrics[name]))
    assert_same_states(here, there, folder, holdings, close)


def assert_same_states(here, there, folder, holdings, close=torch.equal):
    for client, theirs in there.states(folder, holdings).items():
        mine = rows_of(here, client)
        if mine is None:  # never asked, or it keeps nothing
            assert not theirs
        else:
            assert mine.keys() == theirs.keys()
            assert all(close(value, theirs[name]) for name, value in mine.items())


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_runs_alike_by_nodes(name, tmp_path):
    algorithm = CASES[name].algorithm()
    batches = rounds_of(algorithm, ROUNDS, size=4)
    here, there, results = both(lambda: quadratic(algorithm), NUMBERS, batches, NODES, tmp_path)
    assert_same(here, there, results, tmp_path, NODES)
    assert (here.point - loop_for(quadratic(algorithm)).point).norm() > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_runs_alike_by_nodes_with_personal_blocks(name, tmp_path):
    algorithm = CASES[name].personal_algorithm()
    problem = CASES[name].problem
    batches = rounds_of(algorithm, ROUNDS, size=4)
    here, there, results = both(
        lambda: personal_quadratic(algorithm, **problem), NUMBERS, batches, NODES, tmp_path, Vectorized(chunk_size=2)
    )
    close = partial(torch.allclose, rtol=1e-5)
    assert_same(here, there, results, tmp_path, NODES, close)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(chunk_size=2)], ids=["one by one", "batched"])
def test_situations_are_alike_by_nodes(situation, oracle, tmp_path):
    make, data_options, options = SITUATIONS[situation]
    task = seeded(make)
    data = regression_data(**{"participation": Uniform(3), **data_options})
    holdings = [[3, 1], [0, 2]]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Round .* was skipped")
        here, there, results = both(task, data, batches_of(data, task()), holdings, tmp_path, oracle, **options)
    close = torch.equal if isinstance(oracle, Sequential) else partial(torch.allclose, rtol=1e-5)
    assert_same(here, there, results, tmp_path, holdings, close)
