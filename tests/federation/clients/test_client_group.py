"""Clients alike in shape: what each receives of a broadcast, and whose fault an error is."""

from __future__ import annotations

import gc
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from fedlightning.algorithms import FIAELT, FedAvg
from fedlightning.algorithms.base import PerClient, Point
from fedlightning.channel import Channel, Clip
from fedlightning.federation.clients import client_group
from fedlightning.federation.clients.client_update import for_clients
from fedlightning.local import SVRG, FixedSteps, GradientDescent
from fedlightning.oracle import Autocast, ObjectiveError, Sequential, Vectorized
from fedlightning.oracle.effects.guard import Guard
from tests.support.federations import loop_for, quadratic, rounds_of, run


@dataclass(frozen=True)
class Mixed:
    z: torch.Tensor
    own: Any


def test_of_what_differs_between_clients_each_receives_its_own():
    own = PerClient(torch.zeros(2), torch.tensor([3, 1]), torch.tensor([[3.0, 3.0], [1.0, 1.0]]))
    message = Mixed(torch.ones(2), own)
    received = for_clients(message, [1, 2, 3])
    assert received.own.tolist() == [[1.0, 1.0], [0.0, 0.0], [3.0, 3.0]]
    assert received.z is message.z
    assert message.own is own


def test_what_is_the_same_for_all_is_handed_on():
    message = Point(torch.ones(2))
    assert for_clients(message, [0, 5]) is message


def test_an_objective_that_fails_is_named_with_its_client():
    task = quadratic(FedAvg(0.05))
    original = task.objective

    def fails_later(batch):
        if task.failing:
            raise ArithmeticError("no number")
        return original(batch)

    task.objective, task.failing = fails_later, False
    loop = loop_for(task, Sequential())
    first, second = rounds_of(FedAvg(0.05), 2, size=3)
    run(loop, [first])
    task.failing = True
    client = min(member.id for member in second.cohorts[0].members)
    with pytest.raises(ObjectiveError, match=rf"objective failed for client {client}: ArithmeticError: no number"):
        run(loop, [second])


def test_clients_one_by_one_may_keep_what_they_like_without_being_watched(monkeypatch):
    """The watch goes through all that Python keeps, which for some modules takes longer than their training."""
    watched = []
    monkeypatch.setattr(client_group, "Guard", lambda *arguments: watched.append(arguments) or Guard(*arguments))
    algorithm = FedAvg(0.05)
    points = []
    for oracle in (Sequential(), Vectorized()):
        points.append(run(loop_for(quadratic(algorithm), oracle), rounds_of(algorithm, 2, size=3)))
        assert bool(watched) == isinstance(oracle, Vectorized)
    torch.testing.assert_close(*points)


def test_chunks_are_watched_by_one_guard_a_phase(monkeypatch):
    watched = []
    monkeypatch.setattr(client_group, "Guard", lambda *arguments: watched.append(arguments) or Guard(*arguments))
    algorithm = FedAvg(0.05)
    run(loop_for(quadratic(algorithm), Vectorized(chunk_size=1)), rounds_of(algorithm, 2, size=3))
    assert len(watched) == 2


@dataclass(frozen=True)
class Noting(Vectorized):
    """Notes how many evaluations each phase of each round announces."""

    announced: list[int] = field(default_factory=list)

    def evaluator(self, objective, calls):
        self.announced.append(calls)
        return super().evaluator(objective, calls)


@pytest.mark.parametrize(
    ("solver", "expected"),
    [
        (GradientDescent(lr=0.05, max_steps=4), [1, 4, 4]),
        (SVRG(lr=0.05, inner_steps=5, epochs=3), [15, 1, 15, 3, 15, 3]),
    ],
)
def test_gradients_on_all_data_are_replayed_once_their_number_is_known(solver, expected):
    """The first round counts them; the later rounds record them, with the same bits."""
    points = []
    for oracle in (Noting(), Vectorized(replay=False)):
        algorithm = FIAELT(beta=2.0, solver=solver, stop=FixedSteps())
        loop = loop_for(quadratic(algorithm), oracle)
        points.append(run(loop, rounds_of(algorithm, 3, size=3)))
        if isinstance(oracle, Noting):
            assert oracle.announced == expected
    assert torch.equal(*points)


WAYS = {
    "batched": {"chunk_size": 2},
    "halved": {"chunk_size": 6},
    "in parts": {"chunk_size": 2, "parts": 2},
    "side by side": {"chunk_size": 2, "backward": "each", "threads": 2},
}


@pytest.fixture
def uncollected():
    """Have nothing freed but what nobody refers to any more."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize(
    ("channel", "way"), [*((None, way) for way in WAYS), (Channel([Clip(1.0)]), "batched")], ids=[*WAYS, "channel"]
)
def test_the_answers_of_some_clients_are_freed_before_the_next_ones_begin(
    channel, way, monkeypatch, two_threads, uncollected
):
    before, gone = [], []
    update = FedAvg.client_update

    def watched(self, message, state, oracle):
        if oracle.num_clients > 2:
            raise MemoryError
        gone.extend(each.expired() for each in before)
        reply = update(self, message, state, oracle)
        before[:] = [StorageWeakRef(reply.point.untyped_storage())]
        return reply

    algorithm = FedAvg(0.05)
    loop = loop_for(quadratic(algorithm), Vectorized(**WAYS[way]), channels=channel)
    monkeypatch.setattr(FedAvg, "client_update", watched)
    run(loop, rounds_of(algorithm, 1, size=6))
    assert len(gone) >= 2
    assert all(gone)


def test_the_drift_in_blocks_is_that_of_whole_points(monkeypatch):
    algorithm, found = FedAvg(0.05), []
    for columns, numbers in ((2**18, 2**20), (6, 2**20), (6, 12), (1, 1)):
        monkeypatch.setattr(client_group, "CACHED_COLUMNS", columns)
        monkeypatch.setattr(client_group, "CACHED_NUMBERS", numbers)
        loop = loop_for(quadratic(algorithm), Vectorized())
        (batch,) = rounds_of(algorithm, 1, size=3)
        found.append(loop.run(batch, Autocast("cpu")).metrics["drift"])
    torch.testing.assert_close(torch.stack(found), found[0].expand(4))
    assert found[0] > 0
