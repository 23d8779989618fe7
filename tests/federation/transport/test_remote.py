"""Nodes that get bytes and keep files run every algorithm as the simulation does."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch

from fedlightning.oracle import Sequential, Vectorized
from fedlightning.participation import Uniform
from tests.support.cases import CASES
from tests.support.federations import loop_for, personal_quadratic, quadratic, rounds_of
from tests.support.nodes import NODES, NUMBERS, assert_same, both
from tests.support.situations import ROUNDS, SITUATIONS, batches_of, seeded
from tests.support.small import regression_data


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
