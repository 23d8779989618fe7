"""Schedules over rounds, of every hyper-parameter of every algorithm."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import fields, replace
from functools import cache, partial

import pytest
import torch

from fedlightning import algorithms as fl
from fedlightning.core.in_force import in_force, scheduled
from fedlightning.core.schedule import varies_by_round
from fedlightning.local import SVRG, Adam, GradientDescent, LocalSteps
from fedlightning.oracle import Autocast, Sequential, Vectorized
from fedlightning.proximal import L1, compose
from fedlightning.schedules import Exponential, Function, Milestones
from tests.support.cases import CASES, EXACT
from tests.support.federations import (
    CLIENTS,
    close,
    loop_for,
    personal_quadratic,
    quadratic,
    rounds_of,
    run,
    space_of,
    train,
)
from tests.support.over_the_wire import FederationOverTheWire
from tests.support.ragged import personal_of, ragged
from tests.support.ragged import rounds as ragged_rounds
from tests.support.saddles import PROBLEM, at_the_saddle
from tests.support.uninterrupted import uninterrupted


def number_of(case, field):
    """The number a case has for a hyper-parameter, or the other one where it has none."""
    value = getattr(case.algorithm(), field)
    return case.other[field] if value is None else value


VARYING = [
    (name, field.name)
    for name, case in CASES.items()
    for field in fields(case.make)
    if field.init and varies_by_round(field)
]
CONSTANT = [
    (name, field.name)
    for name, case in CASES.items()
    for field in fields(case.make)
    if field.init and not varies_by_round(field)
]
COMPOSITE = [name for name, case in CASES.items() if case.make.regularized]


def falling(case, field):
    """A case's algorithm with a hyper-parameter that falls from its number on."""
    return case.algorithm(**{field: Exponential(number_of(case, field), gamma=0.83)})


def rows(loop):
    """All that clients keep."""
    return {key: loop.clients.all(key) for key in loop.clients.template}


@cache
def fallen(name, field):
    """A run with a hyper-parameter that falls: its rounds, points and loop, and what was stored before the last two."""
    algorithm = falling(CASES[name], field)
    batches = rounds_of(algorithm, 5, size=4)
    loop = loop_for(quadratic(algorithm))
    points = run(loop, batches[:3])
    stored = deepcopy(loop.state_dict())
    return batches, torch.cat([points, run(loop, batches[3:])]), loop, stored


def by_hand(algorithm, batches, **options):
    """The trajectory and the last loop of runs of one round each, every one resumed with plain numbers."""
    points, state = [], None
    for batch in batches:
        loop = loop_for(quadratic(in_force(algorithm, batch.index)), **options)
        if state is not None:
            loop.load_state_dict(state)
        loop.run(batch, Autocast("cpu"))
        points.append(loop.point.clone())
        state = loop.state_dict()
    return torch.stack(points), loop


DIVIDES = ("SCAFFOLD", "Scaffnew", "CODASCA", "FedDualAvg", "FeDualEx")
GO_ON = ("FedMM", "FedMM over all", "FedDyn", "FedAPM", "FedALA", "FedSkip", "LpProj")
"""Duals, shares, references and late means go on without a step."""


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "lr" in case.hyper and name not in DIVIDES])
def test_a_step_of_size_zero_is_the_limit_of_small_ones(name):
    case = CASES[name]
    lr = case.hyper["lr"]
    without, nearly = (
        train(case.algorithm(lr=Milestones({0: none, 1: lr, 3: none, 4: lr})), rounds=7, size=4)[2]
        for none in (0.0, 1e-13)
    )
    assert (without - nearly).abs().max() < 1e-10
    if name not in GO_ON:
        close(without[3], without[2], 1e-15)
    assert not torch.allclose(without[-1], without[3])


@pytest.mark.parametrize("name", DIVIDES)
def test_a_step_of_size_zero_is_refused_where_it_is_divided_by(name):
    with pytest.raises(ValueError, match=rf"{name}\(lr=.* is 0.0 after 3 rounds: expected > 0, because .*stay above 0"):
        CASES[name].algorithm(lr=Milestones({0: 0.1, 3: 0.0}))


@pytest.mark.parametrize("solver", [LocalSteps, partial(GradientDescent, max_steps=5), partial(SVRG, inner_steps=4)])
def test_solvers_without_steps_are_the_limit_of_small_ones(solver):
    without, nearly = (
        train(CASES["FedDR"].algorithm(solver=solver(Milestones({0: 0.06, 2: none, 3: 0.06}))), rounds=5, size=4)[2]
        for none in (0.0, 1e-13)
    )
    assert (without - nearly).abs().max() < 1e-10
    assert without.isfinite().all()


def test_optimizers_remember_the_directions_of_rounds_without_a_step():
    """As torch's do; in the personal block as well."""
    lr = Milestones({0: 0.05, 1: 0.0, 3: 0.05})
    algorithm = fl.StatefulFedAvg(lr, local_optimizer=Adam())
    batches = rounds_of(algorithm, 4, size=4)
    loop = loop_for(personal_quadratic(algorithm))
    run(loop, batches[:1])
    before = rows(loop)
    run(loop, batches[1:3])
    after = rows(loop)
    taken = sorted(name for name, values in before.items() if not torch.equal(values, after[name]))
    assert taken == ["state.first", "state.second", "state.steps"]
    dim = len(loop.point)
    assert all((before[name] != after[name])[:, dim:].any() for name in taken[:2])


def test_every_family_has_a_step_size_that_varies():
    assert {name for name, field in VARYING if field == "lr"} | {
        name for name, case in CASES.items() if hasattr(case.make, "solve")
    } == set(CASES)


@pytest.mark.parametrize(("name", "field"), VARYING)
def test_a_constant_schedule_is_bitwise_the_number(name, field):
    case = CASES[name]
    number = number_of(case, field)
    has_number = getattr(case.algorithm(), field) is not None
    _, plain, expected = uninterrupted(name, 4, 4) if has_number else train(case.algorithm(**{field: number}), size=4)
    _, loop, trajectory = train(case.algorithm(**{field: Milestones({0: number, 2: number})}), size=4)
    assert torch.equal(trajectory, expected)
    for key, values in rows(plain).items():
        assert torch.equal(loop.clients.all(key), values)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "field"), VARYING)
def test_a_schedule_is_the_number_changed_by_hand_between_rounds(name, field):
    batches, trajectory, loop, _ = fallen(name, field)
    expected, last = by_hand(falling(CASES[name], field), batches)
    close(trajectory, expected, 1e-10)
    for key, values in rows(last).items():
        close(loop.clients.all(key), values, 1e-10)


@pytest.mark.parametrize(("name", "field"), VARYING)
def test_a_resumed_schedule_is_bitwise_the_uninterrupted_one(name, field):
    batches, trajectory, whole, stored = fallen(name, field)
    loop = loop_for(quadratic(falling(CASES[name], field)))
    loop.load_state_dict(stored)
    assert torch.equal(loop.point, trajectory[2])
    assert torch.equal(run(loop, batches[3:]), trajectory[3:])
    for key, values in rows(whole).items():
        assert torch.equal(loop.clients.all(key), values)


@pytest.mark.parametrize(("name", "field"), CONSTANT)
def test_all_others_are_refused_with_the_reason(name, field):
    case = CASES[name]
    if field in ("local_optimizer", "optimizer"):
        return  # a function there makes an optimizer
    with pytest.raises((TypeError, ValueError), match=rf"\({field}="):
        case.algorithm(**{field: Exponential(1.0, gamma=0.9)})


@pytest.mark.parametrize(("name", "field"), [each for each in VARYING if each[0] in EXACT and each[1] != "local_clip"])
def test_the_saddle_stays_a_fixed_point_while_a_hyper_parameter_varies(name, field):
    """Duals are in no units of the hyper-parameter, or change with it; clipped steps have other fixed points."""
    case, (changes, rounds) = CASES[name], EXACT[name]
    number = changes.get(field, number_of(case, field))
    until = 1.15 if field in ("beta", "r", "alpha") and name == "FIAELT" else 0.8
    bent = Function(lambda done: number if done < rounds else number * (1 - (1 - until) * min(done - rounds, 4) / 4))
    algorithm = case.algorithm(**{**changes, field: bent})
    task = quadratic(algorithm, **PROBLEM)
    loop = loop_for(task)
    given = getattr(case.algorithm(**changes), field) is not None
    distance, state = at_the_saddle(name, **(changes if given else {**changes, field: number}))
    assert distance < 1e-8
    loop.load_state_dict(deepcopy(state))
    on = run(loop, rounds_of(algorithm, 6, start=rounds))
    assert (on - task.solution).norm(dim=1).max() < 1e-7


@pytest.mark.parametrize("solver", [LocalSteps(Exponential(0.06, 0.8)), GradientDescent(Exponential(0.06, 0.8), 5)])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if hasattr(case.make, "solve")])
def test_local_solvers_have_schedules_of_their_own(name, solver):
    algorithm = CASES[name].algorithm(solver=solver)
    assert list(scheduled(algorithm)) == ["solver.lr"]
    batches = rounds_of(algorithm, 4, size=4)
    close(run(loop_for(quadratic(algorithm)), batches), by_hand(algorithm, batches)[0], 1e-12)
    plain = replace(algorithm, solver=replace(solver, lr=0.06))
    assert not torch.allclose(run(loop_for(quadratic(algorithm)), batches), run(loop_for(quadratic(plain)), batches))


@pytest.mark.parametrize("name", COMPOSITE)
def test_regularized_methods_take_schedules(name):
    case = CASES[name]
    field = "lr" if "lr" in case.hyper else next(f for n, f in VARYING if n == name)
    algorithm = falling(case, field)
    composite = compose(space_of(quadratic(algorithm)).shared, L1(0.05), L1(0.05), personal=())
    batches = rounds_of(algorithm, 5, size=4)
    expected, _ = by_hand(algorithm, batches, regularizer=composite)
    close(run(loop_for(quadratic(algorithm), regularizer=composite), batches), expected, 1e-10)


@pytest.mark.parametrize("name", CASES)
def test_clients_on_machines_of_their_own_find_the_values_alone(name):
    field = next((field for case, field in VARYING if case == name), None)
    solver = {"solver": LocalSteps(Exponential(0.06, 0.8))}
    algorithm = CASES[name].algorithm(**solver) if field is None else falling(CASES[name], field)
    batches = rounds_of(algorithm, 3, size=4)
    here = run(loop_for(quadratic(algorithm)), batches) if field is None else fallen(name, field)[1][:3]
    close(run(FederationOverTheWire(quadratic(algorithm), CLIENTS, Sequential()), batches), here)


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized(chunk_size=2), Vectorized(replay=False)])
def test_schedules_hold_for_every_oracle(oracle):
    algorithm = fl.FedAvg([Exponential(0.05, 0.8), 0.03])
    batches = rounds_of(algorithm, 4, size=5)
    close(run(loop_for(quadratic(algorithm), oracle), batches), run(loop_for(quadratic(algorithm)), batches))


@pytest.mark.parametrize("make", [fl.FedSim, fl.FedAlt, fl.SCAFFOLD, fl.Ditto])
def test_architectures_share_a_schedule(make):
    """Groups of clients of other shapes, made when they are first met, are in the present round at once."""
    scheduled_one, numbers = make(Exponential(0.05, 0.8)), [0.05 * 0.8**done for done in range(4)]
    batches = ragged_rounds(scheduled_one, 4, 2)
    loop = loop_for(ragged(scheduled_one))
    trajectory = run(loop, batches)
    state = None
    for batch, number, point in zip(batches, numbers, trajectory, strict=True):
        alone = loop_for(ragged(make(number)))
        if state is not None:
            alone.load_state_dict(state)
        alone.run(batch, Autocast("cpu"))
        state = alone.state_dict()
        close(alone.point, point)
    for ours, theirs in zip(personal_of(loop), personal_of(alone), strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("name", CASES)
def test_personal_blocks_step_by_the_schedule(name):
    case = CASES[name]
    if "lr" not in case.hyper:
        return  # the step size is the solver's
    algorithm = case.personal_algorithm(lr=Exponential(0.05, 0.5))
    batches = rounds_of(algorithm, 3, size=4)
    loop = loop_for(personal_quadratic(algorithm, **case.problem))
    run(loop, batches)
    state = None
    for batch in batches:
        alone = loop_for(personal_quadratic(in_force(algorithm, batch.index), **case.problem))
        if state is not None:
            alone.load_state_dict(state)
        run(alone, [batch])
        state = alone.state_dict()
    for key, values in rows(alone).items():
        close(loop.clients.all(key), values, 1e-10)
