"""In one process and over a wire, with a runner a client and every message as bytes: the same runs, bit for bit."""

from __future__ import annotations

import warnings

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.federation.protocol import Request
from fedlightning.federation.server import RoundRejectedError
from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.participation import Uniform
from tests.support.alike import assert_same_servers
from tests.support.cases import CASES
from tests.support.federations import CLIENTS, loop_for, personal_quadratic, quadratic, rounds_of
from tests.support.over_the_wire import FederationOverTheWire
from tests.support.situations import ROUNDS, SITUATIONS, batches_of, seeded
from tests.support.small import Line, regression_data

FEW = 4
"""Clients of every algorithm: each is a federation of one over the wire, and some stay away from every round."""


def both(make, batches, num_clients, oracle=None, **options):
    """The same rounds in one process and over the wire."""
    oracle = Sequential() if oracle is None else oracle
    here, there = loop_for(make(), oracle, **options), FederationOverTheWire(make(), num_clients, oracle, **options)
    results = []
    for batch in batches:
        results.append([loop.run(batch, Autocast("cpu")) for loop in (here, there)])
    return here, there, results


def assert_same(here, there, results, num_clients, close=torch.equal):
    assert_same_servers(here, there, results, close)
    for client in range(num_clients):
        kept = here.runner.clients.table.models(
            [client], here.point, here.buffers
        )  # before they are adapted, if they are
        for mine, theirs in zip(kept, there.model(client), strict=True):
            assert theirs is None or close(mine, theirs)  # None with clients that were never asked


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_runs_alike_over_the_wire(name):
    algorithm = CASES[name].algorithm()
    batches = rounds_of(algorithm, ROUNDS, FEW, size=3)
    here, there, results = both(lambda: quadratic(algorithm, FEW), batches, FEW)
    assert_same(here, there, results, FEW)
    assert there.wire.bytes > 0
    moved = here.point - loop_for(quadratic(algorithm, FEW)).point
    assert moved.norm() > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_runs_alike_with_personal_blocks(name):
    algorithm = CASES[name].personal_algorithm()
    problem = CASES[name].problem
    batches = rounds_of(algorithm, ROUNDS, FEW, size=3)
    here, there, results = both(lambda: personal_quadratic(algorithm, FEW, **problem), batches, FEW)
    assert_same(here, there, results, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(chunk_size=2)], ids=["one by one", "batched"])
def test_situations_are_alike_over_the_wire(situation, oracle):
    make, data_options, options = SITUATIONS[situation]
    task = seeded(make)
    data = regression_data(**{"participation": Uniform(3), **data_options})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Round .* was skipped")
        here, there, results = both(task, batches_of(data, task()), 4, oracle, **options)
    exactly = isinstance(oracle, Sequential)
    assert_same(here, there, results, 4, torch.equal if exactly else torch.allclose)


@pytest.mark.parametrize("name", ["SCAFFOLD", "FedSkip", "CDMA_ADA", "FedMM"])
def test_old_repeated_and_uninvited_answers_change_nothing(name):
    algorithm = next(case.algorithm() for key, case in CASES.items() if type(case.algorithm()).__name__ == name)
    here = loop_for(quadratic(algorithm), Sequential())
    there = FederationOverTheWire(quadratic(algorithm), CLIENTS, Sequential(), hostile=True)
    results, said = [], set()
    for batch in rounds_of(algorithm, ROUNDS, size=4):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results.append([loop.run(batch, Autocast("cpu")) for loop in (here, there)])
        said |= {str(warning.message).partition("because ")[2].rstrip(".") for warning in caught}
    assert_same(here, there, results, CLIENTS)
    assert {"it came twice", "the client was not invited"} < said
    assert any("it answers phase" in why for why in said)


def test_a_client_receives_nothing_that_belongs_to_another():
    algorithm = next(case.algorithm() for case in CASES.values() if isinstance(case.algorithm(), fl.FedSkip))
    there, seen = FederationOverTheWire(quadratic(algorithm), CLIENTS, Sequential()), []
    travel = there.wire.travel
    there.wire.travel = lambda message: seen.append(message) or travel(message)
    for batch in rounds_of(algorithm, 3):
        there.run(batch, Autocast("cpu"))
    received = [each.message for each in seen if isinstance(each, Request)]
    assert len(received) == 3 * CLIENTS
    for message in received:
        (values,) = vars(message).values()
        assert values.values.numel() == values.client_ids.numel() == 0
    d = len(there.point)
    assert there.server.traffic.download == 3 * CLIENTS * d


class Counting(Line):
    """Counts its batches in one of two buffers, as an option of the client says."""

    def __init__(self, which="a"):
        super().__init__(fl.FedAvg(0.05), dropout=0.0)
        self.which = which
        self.register_buffer("a", torch.zeros(()))
        self.register_buffer("b", torch.zeros(()))

    def objective(self, batch):
        getattr(self, self.which).add_(1)
        return super().objective(batch)


def test_a_client_that_joins_late_must_change_the_same_buffers():
    data = regression_data(participation=Uniform(2))
    task = seeded(Counting)
    batches = batches_of(data, task())
    there = FederationOverTheWire(task(), 4, Sequential())
    asked = {member.id for member in batches[0].cohorts[0].members}
    late = next(member.id for batch in batches for member in batch.cohorts[0].members if member.id not in asked)
    there.clients[late].runner.clients.table.task.which = "b"
    until = next(i for i, batch in enumerate(batches) if any(m.id == late for m in batch.cohorts[0].members))
    for batch in batches[:until]:
        there.run(batch, Autocast("cpu"))
    with pytest.raises(ValueError, match="changes buffer 'a' for some clients and not for others"):
        there.run(batches[until], Autocast("cpu"))


@pytest.mark.parametrize("undo_overflow", [False, True])
def test_a_round_that_is_given_up_leaves_all_states(undo_overflow):
    algorithm = fl.SCAFFOLD(0.05)
    first, second = rounds_of(algorithm, 2, size=4)
    here, there = loop_for(quadratic(algorithm), Sequential()), None
    there = FederationOverTheWire(quadratic(algorithm), CLIENTS, Sequential())
    for loop in (here, there):
        loop.run(first, Autocast("cpu"))
        before = loop.point.clone()
        held = [loop.server.traffic.copy(), loop.loop.at_round_boundary]
        spoil(loop)
        if undo_overflow:
            result = loop.run(second, Autocast("cpu"), undo_overflow=True)
            assert result.undone
            assert result.overflow
        else:
            with pytest.raises(RoundRejectedError, match="All 4 clients"):
                loop.run(second, Autocast("cpu"))
            assert loop.server.traffic == held[0]
        assert torch.equal(loop.point, before)
    for client in range(CLIENTS):
        mine = here.clients.of([client])["state.c"]
        theirs = there.clients[client].clients.of([client])["state.c"]
        assert torch.equal(mine, theirs)


def spoil(loop):
    """From now on every client's gradient is NaN."""
    simulations = loop.clients.values() if isinstance(loop, FederationOverTheWire) else [loop]
    for simulation in simulations:
        task = simulation.runner.clients.table.task
        task.objective = lambda batch, original=task.objective: original(batch) * torch.nan
