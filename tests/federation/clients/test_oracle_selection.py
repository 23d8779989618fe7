"""Ways to compute are given up for slower ones where they fail or are wrong; where memory is short, first for fewer."""

from __future__ import annotations

import gc
import hashlib
import logging
from queue import SimpleQueue
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from torch._C._functorch import get_unwrapped, is_batchedtensor, is_functorch_wrapped_tensor

from fedlightning.algorithms import SCAFFOLD, FedAvg
from fedlightning.federation.processes import OneProcess
from fedlightning.oracle import Auto, Autocast, ObjectiveError, Sequential, Vectorized
from tests.support.federations import CLIENTS, loop_for, quadratic, rounds_of, run
from tests.support.small import Line, fitted

STEPS = 25  # enough to be replayed

ERRORS = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    "cpu": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 80000000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    "numpy": MemoryError("Unable to allocate 72.8 TiB"),
}


def at_once(tensor):
    """Clients that a tensor of the objective stands for; 0 for a client alone."""
    while is_functorch_wrapped_tensor(tensor):
        if is_batchedtensor(tensor):
            return len(get_unwrapped(tensor))
        tensor = get_unwrapped(tensor)
    return 0


def trained(oracle, most=CLIENTS, error=ERRORS["gpu"], algorithm=None, rounds=3, from_round=0, **options):
    """A loop after some rounds in which ``most`` clients fit into memory; its points, what it said, and its chunks."""
    algorithm = algorithm or FedAvg(0.05)
    task, said, sizes = quadratic(algorithm), [], []
    original, task.full = task.objective, from_round == 0

    def objective(batch):
        if task.full and at_once(batch) > most:
            raise error
        return original(batch)

    task.objective = objective
    loop = loop_for(task, oracle, report=said.append, **options)
    ask = loop.loop.transport.ask

    def noting(request, invited):
        for answer in ask(request, invited):
            sizes.append(len(answer.client_ids))
            yield answer

    loop.loop.transport.ask = noting
    points = []
    for index, batch in enumerate(rounds_of(algorithm, rounds, local_steps=STEPS)):
        task.full = index >= from_round
        points.append(run(loop, [batch]))
    return torch.cat(points), loop, said, sizes


def assert_right(points, **options):
    torch.testing.assert_close(points, trained(Sequential(), **options)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("oracle", [Vectorized(), Vectorized(replay=False, backward="vmap")], ids=str)
def test_a_chunk_that_does_not_fit_is_halved(oracle, error):
    points, loop, said, sizes = trained(oracle, most=3, error=error, self_check="first")
    assert said == ["oracle: took chunks of 3 clients: 6 at once do not fit into memory"]
    assert sizes == [3, 3] * 3
    assert isinstance(loop.oracle, Vectorized)
    assert loop.oracle.chunk_size == 3
    assert_right(points)


@pytest.mark.parametrize("algorithm", [FedAvg(0.05), SCAFFOLD(0.05)], ids=["stateless", "with states"])
def test_halving_goes_on_in_a_later_round(algorithm):
    points, loop, said, sizes = trained(Vectorized(chunk_size=5), most=1, from_round=1, algorithm=algorithm)
    assert said == ["oracle: took chunks of 1 client: 3 at once do not fit into memory"]
    assert sizes == [3, 3] + [1] * 6 * 2
    assert loop.oracle.chunk_size == 1
    assert_right(points, algorithm=algorithm)


def _full(*args):
    raise ERRORS["gpu"]


def test_one_client_that_does_not_fit_is_computed_plainly(monkeypatch):
    monkeypatch.setattr("fedlightning.oracle.vectorized.of_one", _full)
    points, loop, said, _ = trained(Vectorized(chunk_size=2), most=0)
    assert loop.oracle == Sequential()
    assert said == ["oracle: took Sequential: 2 at once do not fit into memory"]
    assert_right(points)


@pytest.mark.parametrize("most", [2, 0])
def test_a_trial_takes_as_many_clients_as_fit(most, monkeypatch):
    monkeypatch.setattr(Auto, "seconds", _preferring_chunks(Auto.seconds))
    if most == 0:
        monkeypatch.setattr("fedlightning.oracle.vectorized.of_one", _full)
    points, loop, said, _ = trained(Auto(), most=most)
    assert said[0] == f"oracle: took chunks of {most or 1} client{'s' * (most > 1)}: 6 at once do not fit into memory"
    assert len(said) == 2
    if most:
        assert (type(loop.oracle), loop.oracle.chunk_size) == (Vectorized, 2)
    else:
        assert isinstance(loop.oracle, Sequential)
    assert_right(points)


def _preferring_chunks(measured):
    def time(self, oracle, *arguments):
        return measured(self, oracle, *arguments) * (1e6 if isinstance(oracle, Sequential) else 1.0)

    return time


def test_memory_that_the_algorithm_runs_out_of_counts_as_well(monkeypatch):
    """Points and client states of a chunk are the algorithm's, not the objective's."""
    algorithm = SCAFFOLD(0.05)
    whole = type(algorithm).client_update

    def client_update(self, message, state, oracle):
        if oracle.num_clients > 4:
            raise ERRORS["gpu"]
        return whole(self, message, state, oracle)

    monkeypatch.setattr(type(algorithm), "client_update", client_update)
    points, _, said, sizes = trained(Vectorized(), algorithm=algorithm)
    assert said == ["oracle: took chunks of 3 clients: 6 at once do not fit into memory"]
    assert sizes == [3, 3] * 3
    assert_right(points, algorithm=algorithm)


@pytest.mark.parametrize("oracle", [Vectorized(), Vectorized(replay=False, backward="vmap")], ids=str)
def test_nothing_of_a_failed_attempt_is_held_in_the_next(oracle):
    task, made, left = quadratic(FedAvg(0.05)), WeakValueDictionary(), SimpleQueue()  # neither is put back
    original = task.objective

    def objective(batch):
        if at_once(batch) > 3:
            large = 4 * task.x
            made[id(large)] = large
            raise torch.OutOfMemoryError("CUDA out of memory")
        left.put(len(made))
        return original(batch)

    task.objective = objective
    gc.disable()
    try:
        run(loop_for(task, oracle), rounds_of(FedAvg(0.05), 1))
    finally:
        gc.enable()
    assert not left.empty()
    assert not any(left.get() for _ in range(left.qsize()))


def test_the_way_a_chunk_is_batched_does_not_depend_on_memory():
    _, loop, _, _ = trained(Vectorized(replay=False), most=3)
    assert loop.runner.clients.objective.forward_only


def test_what_does_not_fit_plainly_is_the_objective_s_own_error():
    def fails(batch):
        raise ERRORS["gpu"]

    task = quadratic(FedAvg(0.05))
    task.objective = fails
    loop = loop_for(task, Sequential())
    with pytest.raises(ObjectiveError, match="client 0: OutOfMemoryError: CUDA out of memory"):
        run(loop, rounds_of(FedAvg(0.05), 1))


def test_objective_that_vmap_cannot_run_is_computed_one_client_after_the_other(caplog):
    class Branches(Line):
        def objective(self, batch):
            loss = super().objective(batch)["loss"]
            return {"loss": loss if loss > 0.1 else 2 * loss}

    weights = []
    with caplog.at_level(logging.INFO):
        for oracle in (Vectorized(), Sequential()):
            torch.manual_seed(0)
            task = Branches(oracle=oracle)
            fitted(task)
            weights.append(task.head.weight)
    assert torch.equal(*weights)
    (line,) = [message for message in caplog.messages if "oracle" in message]
    assert line.startswith(
        "oracle: took Sequential: with Vectorized(backward='autograd', replay=True) Branches.objective"
    )
    assert "torch.func.vmap" in line


def test_auto_falls_back_to_sequential_with_a_message(caplog):
    class Branches(Line):
        def objective(self, batch):
            loss = super().objective(batch)["loss"]
            return {"loss": loss if loss > 0.1 else 2 * loss}

    task = Branches()
    with caplog.at_level("INFO", logger="lightning.pytorch.utilities.rank_zero"):
        fitted(task)
    assert "took Sequential" in caplog.text
    assert task.run.simulation.runner.oracle_selection.oracle == Sequential()


def test_an_operation_without_a_batching_rule_is_computed_one_client_after_the_other():
    with torch.library._scoped_library("fedlightning_test", "DEF") as library:  # several tensors: no fallback of vmap's
        library.define("total(Tensor[] parts) -> Tensor")
        library.impl("total", lambda parts: torch.stack(parts).sum(), "CompositeExplicitAutograd")

        class Odd(Line):
            def objective(self, batch):
                return {"loss": super().objective(batch)["loss"] + torch.ops.fedlightning_test.total([batch[1]])}

        for oracle in (None, Vectorized(), Vectorized(compile=True)):
            task = Odd(oracle=oracle)
            fitted(task, max_steps=1)
            taken = task.run.simulation.runner.oracle_selection.oracle
            assert isinstance(taken, Sequential) or (oracle is None and taken.backward == "each")


def test_python_numbers_that_are_drawn_late_are_noticed():
    def late(task, original, batch):
        return original(batch) * (1 + (np.random.rand() if task.noisy else 0))

    algorithm = FedAvg(0.05)
    task = quadratic(algorithm)
    original, task.noisy = task.objective, False
    task.objective = lambda batch: late(task, original, batch)
    said = []
    loop = loop_for(task, Vectorized(), report=said.append, self_check="first")
    first, second = rounds_of(algorithm, 2, local_steps=STEPS)
    run(loop, [first])
    assert said == []
    task.noisy = True
    run(loop, [second])
    assert isinstance(loop.oracle, Sequential)
    assert "has begun to draw random numbers from Python or NumPy" in said[0]


def test_what_begins_to_fail_later_falls_back_in_that_round():
    def from_round_two(task, original, batch):
        loss = original(batch)
        return loss * (2 if task.branch and loss.item() != 0 else 1)

    results = []
    for oracle in (Sequential(), Vectorized()):
        algorithm = FedAvg(0.05)
        task = quadratic(algorithm)
        original, task.branch = task.objective, False
        task.objective = lambda batch, task=task, original=original: from_round_two(task, original, batch)
        said = []
        loop = loop_for(task, oracle, report=said.append, self_check="first")
        points = []
        for index, batch in enumerate(rounds_of(algorithm, 3, local_steps=STEPS)):
            task.branch = index == 1
            points.append(run(loop, [batch]))
        results.append(torch.cat(points))
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-12)
    assert loop.oracle == Sequential()
    (line,) = said
    assert line.startswith("oracle: took Sequential: with Vectorized(backward='autograd', replay=True) ")


def test_every_n_rounds_finds_what_the_first_round_does_not_show():
    """State that acts from the third round on, where nothing follows it."""
    digest = hashlib.md5()

    def later(task, original, batch):
        if task.started:
            digest.update(b"a call")
        return original(batch) * (1 + (digest.digest()[0] / 255 if task.started else 0))

    for when, sequential in (("first", False), (2, True), ("off", False)):
        algorithm = FedAvg(0.05)
        task = quadratic(algorithm)
        original, task.started = task.objective, False
        task.objective = lambda batch, task=task, original=original: later(task, original, batch)
        loop = loop_for(task, Vectorized(), self_check=when)
        for index, batch in enumerate(rounds_of(algorithm, 4, local_steps=STEPS)):
            task.started = index >= 2
            loop.run(batch, Autocast("cpu"))
        assert isinstance(loop.oracle, Sequential) == sequential


class UnlikeProcesses(OneProcess):
    """Two processes, of which the other was given another oracle."""

    count = 2

    def collect(self, value):
        return [value, "Sequential(threads=None)"]


def test_processes_that_were_given_different_oracles_are_told():
    loop = loop_for(quadratic(FedAvg(0.05)), Vectorized(), processes=UnlikeProcesses())
    selection = loop.runner.oracle_selection
    with pytest.raises(ValueError, match=r"process 0 was given Vectorized\(.*, process 1 Sequential\(threads=None\)"):
        selection.choose(None, None, None, None)
