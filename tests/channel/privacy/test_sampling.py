"""What cohorts hide: relations and sensitivities by kind of participation, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from fedlightning.channel.privacy import EveryClient, FixedSizeSampling, PoissonSampling, sampling_of
from fedlightning.participation import (
    Asynchronous,
    FirstResponders,
    FixedDuration,
    Full,
    Participation,
    Poisson,
    Timed,
    Uniform,
    WaitForAll,
)
from tests.support.accounts import needs_dp_accounting


@pytest.mark.parametrize(
    ("participation", "expected"),
    [
        (Full(), EveryClient(100)),
        (Poisson(0.1), PoissonSampling(100, 0.1)),
        (Timed(FixedDuration(), Poisson(0.1)), PoissonSampling(100, 0.1)),
        (Timed(FixedDuration()), EveryClient(100)),
        (WaitForAll(), EveryClient(100)),
        (WaitForAll(Uniform(size=10)), FixedSizeSampling(100, 10)),
        (Poisson(1.0), EveryClient(100)),
        (Uniform(size=10), FixedSizeSampling(100, 10)),
        (Uniform(fraction=0.1), FixedSizeSampling(100, 10)),
        (Uniform(size=100), EveryClient(100)),
    ],
)
def test_participations_are_known(participation, expected):
    assert sampling_of(participation, 100) == expected
    assert sampling_of(participation, 100).expected == pytest.approx(participation.expected(100))


def test_the_relation_goes_with_the_kind():
    assert PoissonSampling(100, 0.1).relation == EveryClient(100).relation == "ADD_OR_REMOVE_ONE"
    assert FixedSizeSampling(100, 10).relation == "REPLACE_ONE"
    words = {each.protects for each in (PoissonSampling(100, 0.1), FixedSizeSampling(100, 10), EveryClient(100))}
    assert len(words) == 3


def test_only_poisson_cohorts_can_be_empty():
    assert PoissonSampling(4, 0.5).empty == 0.125
    assert FixedSizeSampling(4, 2).empty == EveryClient(4).empty == 0.0


def test_first_responders_are_no_random_cohort():
    with pytest.raises(ValueError, match=r"FirstResponders\(size=16\): who answers first .* Use Poisson"):
        sampling_of(FirstResponders(size=16), 100)


def test_who_fills_a_buffer_is_no_random_cohort():
    with pytest.raises(ValueError, match=r"Asynchronous\(buffer=4\): who fills the buffer .* Use Poisson"):
        sampling_of(Asynchronous(10, 4, FixedDuration()), 100)


def test_an_unknown_participation_is_refused_until_registered():
    @dataclass(frozen=True)
    class Alphabetical(Participation):
        def cohort(self, num_clients, seed, round_index, phase):
            return [0]

    with pytest.raises(TypeError, match=r"Alphabetical: no account of privacy knows"):
        sampling_of(Alphabetical(), 10)


@needs_dp_accounting
def test_events_carry_the_sensitivity_of_their_relation():
    import dp_accounting as events

    assert EveryClient(100).event(3.0) == events.GaussianDpEvent(3.0)
    assert PoissonSampling(100, 0.1).event(3.0) == events.PoissonSampledDpEvent(0.1, events.GaussianDpEvent(3.0))
    # replacing one client moves the sum by 2 C, so noise of 3 C is 1.5 times the sensitivity
    replaced = events.SampledWithoutReplacementDpEvent(100, 10, events.GaussianDpEvent(1.5))
    assert FixedSizeSampling(100, 10).event(3.0) == replaced
