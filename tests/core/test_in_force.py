"""Dataclasses whose schedules have become the numbers of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedlightning.algorithms import FIAELT, SCAFFOLD, FedADMM, FedAvg, FedPD, FedProx
from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.in_force import in_force, require_varying, scheduled, scheduled_numbers
from fedlightning.core.schedule import PerRound, constant
from fedlightning.local import SVRG, GradientTolerance, LocalSteps
from fedlightning.schedules import Cosine, Exponential, Milestones
from tests.support.federations import quadratic, space_of

FALLING = Milestones({0: 0.4, 2: 0.1})


def test_without_schedules_an_object_is_returned_itself():
    plain = FIAELT(beta=[2.0, 3.0], solver=SVRG(lr=0.1))
    assert in_force(plain, 3) is plain
    assert scheduled(plain) == {}
    assert scheduled_numbers(plain, 3) == {}


def test_numbers_pairs_and_prefixes():
    for rounds, now in enumerate([0.4, 0.4, 0.1, 0.1]):
        assert in_force(FedAvg(FALLING), rounds).lr == now
        assert in_force(FedAvg([0.2, FALLING]), rounds).lr == [0.2, now]
        assert in_force(FedAvg({"head": FALLING, "default": 0.2}), rounds).lr == {"head": now, "default": 0.2}


def test_parts_are_looked_through():
    method = FedPD(eta=0.2, solver=LocalSteps(lr=[FALLING, 0.2]), stop=GradientTolerance(Exponential(1.0, gamma=0.5)))
    now = in_force(method, 2)
    assert (now.solver.lr, now.stop.eps, now.eta) == ([0.1, 0.2], 0.25, 0.2)
    assert list(scheduled(method)) == ["solver.lr", "stop.eps"]
    assert scheduled_numbers(method, 2) == {"solver.lr/min": 0.1, "solver.lr/max": 0.2, "stop.eps": 0.25}


def test_names_of_numbers():
    method = FedProx({"head": FALLING, "default": 0.2}, mu=lambda rounds: 1 + rounds)
    assert scheduled_numbers(method, 3) == {"lr/head": 0.1, "lr/default": 0.2, "mu": 4.0}


@dataclass(frozen=True)
class Inner:
    power: float = 0.5


@dataclass(frozen=True, eq=False)
class Own(FedAvg):
    """Has hyper-parameters that it does not check."""

    gamma: float = 0.9
    limit: float | None = None
    count: int = 3
    rho: float = constant("states are scaled by it", 1.0)
    mu: PerRound = 0.1
    kernel: Any = None
    inner: Inner = Inner()


UNDECLARED = r"it is not declared as PerRound\. .*, or annotate it PerRound"
OWN = {
    "gamma": (
        Own(0.1, gamma=Exponential(0.9, gamma=0.5)),
        r"it is not declared as PerRound\. .*, or annotate it PerRound",
    ),
    "limit": (
        Own(0.1, limit=lambda rounds: 1.0 + rounds),
        r"it is not declared as PerRound\. .*, or annotate it PerRound",
    ),
    "count": (Own(0.1, count=FALLING), r"counts, .* stay the same\. Give one value for all rounds\.$"),
    "rho": (Own(0.1, rho=FALLING), r"states are scaled by it\. Give one value for all rounds\.$"),
    "power": (Own(0.1, inner=Inner(FALLING)), UNDECLARED),
}


@pytest.mark.parametrize("name", OWN)
def test_a_number_that_stays_the_same_takes_no_schedule(name):
    method, why = OWN[name]
    with pytest.raises(InvalidTypeError, match=rf"^(Own|Inner)\((\w+)=.*: \2 takes no schedule, because {why}"):
        method.bind(space_of(quadratic(method)), torch.zeros(1))


def test_functions_in_other_fields_are_no_schedules():
    require_varying(Own(0.1, mu=FALLING, kernel=lambda w: w))


def test_the_rest_of_an_object_stays_as_it_is():
    solver = SVRG(lr=0.1)
    now = in_force(FIAELT(beta=Exponential(8.0, gamma=0.5), tau=0.6, solver=solver), 1)
    assert (now.beta, now.tau) == (4.0, 0.6)
    assert now.solver is solver


def test_values_that_the_hyper_parameter_may_not_have_are_refused_in_their_round():
    method = SCAFFOLD(Cosine(0.1, rounds=10))
    in_force(method, 9)
    with pytest.raises(
        InvalidValueError, match=r"After 10 rounds of the schedule: SCAFFOLD\(lr=0.0\): expected > 0, because a control"
    ):
        in_force(method, 10)


def test_a_step_size_of_zero_is_that_of_a_round_and_no_number_of_its_own():
    method = FedPD(eta=0.2, solver=LocalSteps(lr=[Cosine(0.1, rounds=10), 0.2]))
    assert in_force(method, 10).solver.lr == [0.0, 0.2]
    with pytest.raises(ValueError, match=r"LocalSteps\(lr=\[0.0, 0.2\]\): expected > 0"):
        LocalSteps(lr=in_force(method, 10).solver.lr)
    with pytest.raises(InvalidValueError, match=r"After 11 rounds .*FedAvg\(lr=-1\): expected >= 0"):
        in_force(FedAvg(lambda rounds: 10 - rounds), 11)


def test_known_values_are_refused_at_once():
    with pytest.raises(ValueError, match=r"FedAvg\(lr=Milestones\(.*\) is -0.1 after 30 rounds: expected >= 0"):
        FedAvg(lr=Milestones({0: 0.1, 30: -0.1}))
    with pytest.raises(
        ValueError, match=r"SCAFFOLD\(lr=\[0.1, Milestones.*\]\) is 0 after 4 rounds: expected > 0, bec"
    ):
        SCAFFOLD(lr=[0.1, Milestones({0: 0.1, 4: 0})])
    with pytest.raises(ValueError, match=r"FIAELT\(r=Milestones.* is 1.5 after 4 rounds: expected > 0 and < 1"):
        FIAELT(r=Milestones({0: 0.1, 4: 1.5}))
    with pytest.raises(TypeError, match=r"FedADMM\(nu=.*nu takes no schedule, because it is the base of a schedule"):
        FedADMM(4.0, nu=Exponential(0.9, 0.9))


def test_objects_of_others_fields_are_left_alone():
    @dataclass(frozen=True)
    class Other:
        maker: object = float

    assert in_force(Other(lambda: 0), 3).maker() == 0
