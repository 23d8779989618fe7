"""Cohorts that are asked until all have answered."""

from __future__ import annotations

import pytest

from fedlightning.participation import (
    FirstResponders,
    FixedDuration,
    Full,
    Poisson,
    Recruitment,
    Timed,
    Uniform,
    WaitForAll,
)


@pytest.mark.parametrize("rule", [None, Uniform(size=3), Poisson(0.25), Timed(FixedDuration(1.0), Poisson(0.5))])
def test_numbers_of_clients_are_those_of_the_other_rule(rule):
    waits, plain = WaitForAll(rule), rule or Full()
    assert waits.expected(40) == plain.expected(40) > 0
    assert waits.fewest(40) == plain.fewest(40)


@pytest.mark.parametrize("rule", [None, Uniform(size=3), Uniform(fraction=0.5)])
def test_a_cohort_is_waited_for_and_in_a_simulation_it_answers(rule):
    waits, plain = WaitForAll(rule, retries=7, pause=2.0), rule or Full()
    waits.check(9)
    for round_index, phase in ((0, 0), (4, 1)):
        cohort = plain.cohort(9, 1, round_index, phase)
        assert waits.cohort(9, 1, round_index, phase) == cohort
        assert waits.select(9, 1, round_index, phase) == plain.select(9, 1, round_index, phase)
        recruited = waits.recruit(9, 1, round_index, phase)
        assert recruited == Recruitment((cohort,) * 8, at_least=len(cohort), pause=2.0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: WaitForAll(Uniform), r"WaitForAll\(rule=Uniform\): expected a Participation object"),
        (lambda: WaitForAll(retries=-1), r"WaitForAll\(retries=-1\): expected >= 0"),
        (lambda: WaitForAll(pause=-1.0), r"WaitForAll\(pause=-1\.0\): expected >= 0"),
        (lambda: WaitForAll(Uniform(size=10)).check(9), r"Uniform\(size=10\): the cohort is larger"),
        (lambda: WaitForAll(FirstResponders(4)).check(9), r"WaitForAll\(rule=FirstResponders.*goes on without some"),
        (lambda: WaitForAll(FirstResponders(4, first=3, retries=0)).check(9), "goes on without some of the clients"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(make, why):
    with pytest.raises((ValueError, TypeError), match=why):
        make()
