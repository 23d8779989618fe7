"""What every algorithm must keep, whatever it does."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.algorithms import Algorithm
from fedlightning.federation.clients import independence
from fedlightning.federation.clients.rehearsal import rehearsed
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.oracle import Autocast, Sequential, Vectorized
from tests.support.cases import CASES, EXACT
from tests.support.federations import (
    CLIENTS,
    K,
    close,
    cohorts_of,
    loop_for,
    numpy_operators,
    personal_quadratic,
    quadratic,
    rounds_of,
    run,
    start_of,
    train,
)
from tests.support.saddles import at_the_saddle
from tests.support.uninterrupted import ROUNDS, uninterrupted

pytestmark = pytest.mark.parametrize("name", CASES)


@pytest.mark.parametrize("problem", [{}, {"dim_y": 0}], ids=["minimax", "minimisation"])
@pytest.mark.parametrize("size", [None, 4], ids=["all", "cohort"])
def test_trajectory_equals_the_numpy_reference(name, size, problem):
    case = CASES[name]
    task, _, trajectory = uninterrupted(name, size, **problem)
    cohorts = cohorts_of(rounds_of(case.algorithm(), ROUNDS, size=size))
    expected = case.reference(numpy_operators(task), start_of(task), cohorts, K, **case.hyper)
    for ours, theirs in zip(trajectory, expected, strict=True):
        torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-10, atol=1e-10)


def test_vectorized_sequential_and_chunked_agree(name):
    oracles = [Vectorized(), Sequential(), Vectorized(chunk_size=2), Vectorized(replay=False)]
    trajectories = [train(CASES[name].algorithm(), size=5, oracle=oracle)[2] for oracle in oracles]
    for other in trajectories[1:]:
        close(trajectories[0], other)


def test_clients_are_tried_together_and_alone_in_every_phase(name, monkeypatch):
    algorithm, tried = CASES[name].algorithm(), []

    def counted(table, ids, data, request, *others):
        found = rehearsed(table, ids, data, request, *others)
        tried.append((request.stamp.round, request.stamp.phase, len(ids)))
        return found

    monkeypatch.setattr(independence, "rehearsed", counted)
    run(loop_for(quadratic(algorithm), self_check="first"), rounds_of(algorithm, 3, size=5))
    several = len(algorithm.phases) > 1
    for index, phase in product(range(1 + several), range(len(algorithm.phases))):
        own = [clients for *where, clients in tried if where == [index, phase]]
        assert own in ([2, 2, 2, 2, 2, 1], [2, 2, 2, 2, 2, 1, 2, 2, 2, 1])
    assert {index for index, *_ in tried} == set(range(1 + several))


@pytest.mark.gpu
@pytest.mark.parametrize("replay", [False, True], ids=["plain", "graphs"])
def test_on_a_gpu_the_trajectory_is_that_of_a_cpu(name, replay):
    found = train(CASES[name].algorithm(), ROUNDS, size=4, oracle=Vectorized(replay=replay), device="cuda")[2]
    close(uninterrupted(name, 4)[2], found.cpu(), 1e-9)


def test_order_of_the_cohort_does_not_matter(name):
    algorithm = CASES[name].algorithm()

    def backwards(cohort):
        return replace(cohort, members=cohort.members[::-1])

    batches = rounds_of(algorithm, 3, size=4)
    turned = [RoundBatch(b.index, tuple(backwards(c) for c in b.cohorts), b.samples) for b in batches]
    close(uninterrupted(name, 4)[2][:3], run(loop_for(quadratic(algorithm)), turned))


def test_identical_clients_are_one_client(name):
    algorithm = CASES[name].algorithm()
    many = train(algorithm, heterogeneity=0.0, num_clients=4)[2]
    one = train(algorithm, heterogeneity=0.0, num_clients=1)[2]
    close(many, one, 1e-10)


def test_same_seed_same_run(name):
    torch.manual_seed(9)  # of which nothing depends
    assert torch.equal(train(CASES[name].algorithm(), size=4)[2], uninterrupted(name, 4)[2][:4])


def test_another_seed_another_run(name):
    assert not torch.equal(train(CASES[name].algorithm(), size=4, seed=6)[2], uninterrupted(name, 4)[2][:4])


def test_resumed_run_is_bitwise_the_uninterrupted_one(name):
    """Though it is stopped again and again: what is lost at one stop is lost at all, and the whole run has it."""
    algorithm = CASES[name].algorithm()
    _, whole, trajectory = uninterrupted(name, 4)
    batches = rounds_of(algorithm, ROUNDS, size=4)
    loop = loop_for(quadratic(algorithm))
    points = []
    for part in (batches[:1], batches[1:3], batches[3:5], batches[5:]):
        points.append(run(loop, part))
        stopped, loop = loop, loop_for(quadratic(algorithm))
        loop.load_state_dict(stopped.state_dict())
    assert torch.equal(torch.cat(points), trajectory)
    for field in fields(whole.state):
        ours, theirs = getattr(loop.state, field.name), getattr(whole.state, field.name)
        assert torch.equal(torch.as_tensor(ours), torch.as_tensor(theirs))
    for key in whole.clients.template:
        assert torch.equal(loop.clients.all(key), whole.clients.all(key))


def test_inputs_are_not_mutated(name):
    algorithm = CASES[name].algorithm()
    task = quadratic(algorithm)
    loop = loop_for(task)
    batches = rounds_of(algorithm, 3, size=4)
    parameters = [p.detach().clone() for p in task.parameters()]
    before = vars(algorithm).copy()
    run(loop, batches[:1])
    server = loop.state
    held = {f.name: torch.as_tensor(getattr(server, f.name)).clone() for f in fields(server)}
    run(loop, batches[1:])
    for key, value in held.items():
        assert torch.equal(torch.as_tensor(getattr(server, key)), value)
    for old, new in zip(parameters, task.parameters(), strict=True):
        assert torch.equal(old, new)
    assert vars(algorithm) == before


def test_every_hyper_parameter_changes_something(name):
    case = CASES[name]
    assert set(case.other) | case.elsewhere == {f.name for f in fields(case.algorithm()) if f.init}
    base = uninterrupted(name, 4)[2][:4]
    for key, value in case.other.items():
        if key in case.own:
            assert not torch.allclose(kept(case), kept(case, **{key: value}), rtol=1e-6), key
            continue
        changed = train(case.algorithm(**{key: value}), size=4)[2]
        assert not torch.allclose(base, changed, rtol=1e-6), key


def kept(case, **changes):
    """All that clients keep after a few rounds on a problem with a personal block."""
    algorithm = case.personal_algorithm(**changes)
    loop = loop_for(personal_quadratic(algorithm, **case.problem))
    run(loop, rounds_of(algorithm, 3, size=4))
    return torch.cat([loop.clients.all(key).flatten() for key in loop.clients.template])


def test_a_pair_by_block_steps_each_block_by_its_own(name):
    case = CASES[name]
    size = case.hyper[case.size]

    def trained(value, **options):
        return train(case.algorithm(**case.by_block, **{case.size: value}), **options)

    base = trained(size)[2] if case.by_block else uninterrupted(name, None)[2][:4]
    close(base, trained([size, size])[2])
    close(base, trained({"x": size, "y": size})[2])
    still = trained([size, case.still], rounds=2)
    task, _, trajectory = still
    moved = trajectory[-1] - torch.from_numpy(start_of(task))
    assert moved[: len(task.x)].abs().max() > 1e-3
    assert moved[len(task.x) :].abs().max() < 1e-6


def test_identical_data_do_not_drift_at_the_solution(name):
    algorithm = CASES[name].algorithm()
    task = quadratic(algorithm, heterogeneity=0.0)
    solution = task.solution
    with torch.no_grad():
        task.x.copy_(solution[: len(task.x)])
        task.y.copy_(solution[len(task.x) :])
    loop = loop_for(task)
    trajectory = run(loop, rounds_of(algorithm, 3, size=4))
    close(trajectory[-1], solution, 1e-10)
    logged = loop.run(rounds_of(algorithm, 4)[3], Autocast("cpu")).metrics
    drifts = [float(value) for key, value in logged.items() if key.endswith("drift")]
    assert len(drifts) == 1
    assert drifts[0] < 1e-10


def test_absent_clients_keep_their_rows(name):
    algorithm = CASES[name].algorithm()
    task = quadratic(algorithm)
    loop = loop_for(task)
    batches = rounds_of(algorithm, 4, size=2)
    run(loop, batches[:1])
    for batch in batches[1:]:
        before = {key: loop.clients.all(key) for key in loop.clients.template}
        present = {member.id for cohort in batch.cohorts for member in cohort.members}
        run(loop, [batch])
        absent = [i for i in range(CLIENTS) if i not in present]
        for key, rows in before.items():
            assert torch.equal(loop.clients.all(key)[absent], rows[absent])
            if key.removeprefix("state.") not in CASES[name].kept:
                assert not torch.equal(loop.clients.all(key), rows)


def test_reaches_the_saddle_exactly_where_it_should(name):
    if name in EXACT:
        changes, _ = EXACT[name]
        distance, _ = at_the_saddle(name, **changes)
        assert distance < 1e-9
    else:
        task, _, trajectory = train(CASES[name].algorithm(lr=0.1), rounds=20)
        distances = (trajectory - task.solution).norm(dim=1)
        assert distances[-1] > max(1e-3, 0.5 * distances[10])  # not on its way any more


def test_every_algorithm_has_a_case(name):
    concrete = {
        value.__name__
        for value in vars(fl).values()
        if isinstance(value, type) and issubclass(value, Algorithm) and not getattr(value, "__abstractmethods__", None)
    }
    assert concrete == {case.make.__name__ for case in CASES.values()}
