"""What every algorithm must keep when its updates pass through a channel."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import lru_cache

import pytest
import torch

from fedlightning.channel import (
    QSGD,
    AdaptiveClip,
    Channel,
    Clip,
    DistributedGaussianNoise,
    ErrorFeedback,
    GaussianNoise,
    Median,
    TopK,
)
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.oracle import Autocast, Sequential, Vectorized
from tests.support.cases import CASES
from tests.support.federations import CLIENTS, close, loop_for, quadratic, rounds_of, run
from tests.support.nodes import NODES, NUMBERS, assert_same, by_nodes
from tests.support.over_the_wire import FederationOverTheWire
from tests.support.peers import played

ROUNDS = 2
OF_CLIENTS_ALONE = (
    Channel(client=[AdaptiveClip(0.5, count_noise=0.0, initial=0.5), QSGD(8)]),
    Channel(client=[ErrorFeedback(TopK(0.3))]),
)
CHAINS = (
    Channel(
        client=[AdaptiveClip(0.5, count_noise=1.0, initial=0.5), DistributedGaussianNoise(0.1)],
        server=[GaussianNoise(0.1)],
    ),
    Channel(client=[Clip(0.5)], aggregate=Median()),
    Channel(client=[ErrorFeedback(TopK(0.3))], download=[QSGD(8)]),
)

pytestmark = [
    pytest.mark.parametrize("name", CASES, scope="module"),  # so that tests of one algorithm share their runs
    pytest.mark.filterwarnings("ignore:.*diverge"),
]


def chains_of(name):
    if CASES[name].make.server_knows_clients:
        return OF_CLIENTS_ALONE
    return [each for each in CHAINS if not each.adds_noise] if name == "FedExP" else CHAINS


def loop(name, channel, **options):
    return loop_for(quadratic(CASES[name].algorithm()), channels=channel, **options)


def batches_of(name, **options):
    return rounds_of(CASES[name].algorithm(), ROUNDS, size=4, **options)


@lru_cache(maxsize=4 * len(CHAINS) + 1)
def whole_run(name, channel, oracle=Vectorized):
    """Return a run that nothing interrupts, its trajectory, and what it stores and reports after every round."""
    whole = loop(name, channel, oracle=oracle())
    points, stored, results = [], [], []
    for batch in batches_of(name):
        results.append(whole.run(batch, Autocast("cpu")))
        points.append(whole.point.clone())
        stored.append(deepcopy(whole.state_dict()))
    return whole, torch.stack(points), stored, results


def test_a_clip_that_reaches_nobody_changes_nothing(name):
    _, trajectory, *_ = whole_run(name, None)
    close(run(loop(name, Channel(client=[Clip(1e9)])), batches_of(name)), trajectory, 1e-11)


def test_chunks_and_the_order_of_the_cohort_do_not_matter(name):
    turned = [
        RoundBatch(b.index, tuple(replace(c, members=c.members[::-1]) for c in b.cohorts), b.samples)
        for b in batches_of(name)
    ]
    for channel in chains_of(name):
        _, trajectory, *_ = whole_run(name, channel)
        assert not torch.allclose(trajectory, whole_run(name, None)[1], rtol=1e-6)
        close(run(loop(name, channel, oracle=Vectorized(chunk_size=3)), turned), trajectory)


def test_resumed_run_is_bitwise_the_uninterrupted_one(name):
    batches = batches_of(name)
    for channel in chains_of(name):
        whole, trajectory, stored, _ = whole_run(name, channel)
        second = loop(name, channel)
        second.load_state_dict(stored[0])
        assert torch.equal(run(second, batches[1:]), trajectory[1:])
        assert second.server.traffic == whole.server.traffic
        for key in whole.clients.template:
            assert torch.equal(second.clients.all(key), whole.clients.all(key))
        mine, theirs = (each.server.reception.state_dict() for each in (second, whole))
        assert mine["releases"] == theirs["releases"]
        for part in ("public", "known", "memory"):
            assert mine[part].keys() == theirs[part].keys()
            assert all(torch.equal(value, theirs[part][key]) for key, value in mine[part].items())


@pytest.mark.slow
def test_the_wire_changes_nothing(name):
    for channel in chains_of(name):
        here, trajectory, *_ = whole_run(name, channel, Sequential)
        task = quadratic(CASES[name].algorithm())
        there = FederationOverTheWire(task, CLIENTS, Sequential(), channels=channel)
        assert torch.equal(run(there, batches_of(name)), trajectory)
        assert here.server.traffic == there.server.traffic


@pytest.mark.slow
def test_nodes_change_nothing(name, tmp_path):
    algorithm = CASES[name].algorithm()
    for place, channel in enumerate(chains_of(name)):
        folder = tmp_path / str(place)
        here, *_, results = whole_run(name, channel, Sequential)
        there, answered = by_nodes(
            lambda: quadratic(algorithm), NUMBERS, batches_of(name), NODES, folder, Sequential(), channels=channel
        )
        assert_same(here, there, zip(results, answered, strict=True), folder, NODES)


@pytest.mark.slow
def test_two_processes_are_one(name):
    def of(processes):
        federation = loop(name, channel, processes=processes)
        return run(federation, batches_of(name, processes=processes)), federation.server.traffic

    for channel in chains_of(name):
        alone, trajectory, *_ = whole_run(name, channel)
        (one, traffic), (other, _) = played(2, of)
        assert torch.equal(one, other)
        close(one, trajectory, 1e-11)
        assert traffic == alone.server.traffic
