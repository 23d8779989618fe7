"""Schedules that are formulas."""

from __future__ import annotations

import math

import pytest

from fedlightning.schedules import Cosine, Exponential, Milestones, Polynomial, Warmup

VALUES = {
    "milestones": (Milestones({0: 0.1, 2: 0.05, 5: 0.01}), [0.1, 0.1, 0.05, 0.05, 0.05, 0.01, 0.01]),
    "exponential": (Exponential(0.8, gamma=0.5), [0.8, 0.4, 0.2, 0.1]),
    "exponential in steps": (Exponential(0.8, gamma=0.5, every=2), [0.8, 0.8, 0.4, 0.4, 0.2]),
    "growing": (Exponential(1.0, gamma=2.0), [1.0, 2.0, 4.0]),
    "polynomial": (Polynomial(0.6, power=1.0), [0.6, 0.3, 0.2, 0.15]),
    "square root": (Polynomial(0.6, scale=2.0), [0.6, 0.6 / math.sqrt(1.5), 0.6 / math.sqrt(2.0)]),
    "cosine": (Cosine(0.4, rounds=4), [0.4, 0.2 + 0.1 * math.sqrt(2), 0.2, 0.2 - 0.1 * math.sqrt(2), 0.0, 0.0]),
    "cosine to an end": (Cosine(0.5, rounds=2, end=0.1), [0.5, 0.3, 0.1, 0.1]),
    "warmup": (Warmup(3, Exponential(0.4, gamma=0.5)), [0.1, 0.2, 0.3, 0.4, 0.2, 0.1]),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    schedule, expected = VALUES[name]
    assert [schedule(rounds) for rounds in range(len(expected))] == pytest.approx(expected, abs=1e-15)


REFUSED = {
    "no mapping": (lambda: Milestones([30, 60]), TypeError, r"Milestones\(values=\[30, 60\]\): expected whole numbers"),
    "halves": (lambda: Milestones({0: 0.1, 2.5: 0.05}), TypeError, "expected whole numbers of rounds"),
    "nothing": (lambda: Milestones({}), ValueError, "expected the first milestone at 0"),
    "no beginning": (lambda: Milestones({30: 0.01}), ValueError, "expected the first milestone at 0"),
    "backwards": (lambda: Milestones({0: 0.1, 9: 0.05, 4: 0.01}), ValueError, "increasing milestones, but 4 follows 9"),
    "NaN": (lambda: Exponential(math.nan, 0.9), ValueError, r"Exponential\(start=nan\): expected a finite number"),
    "no factor": (lambda: Exponential(0.1, 0.0), ValueError, r"Exponential\(gamma=0.0\): expected > 0"),
    "no rounds": (lambda: Exponential(0.1, 0.9, every=0), ValueError, r"Exponential\(every=0\): expected >= 1"),
    "half a round": (lambda: Cosine(0.1, rounds=2.5), TypeError, r"Cosine\(rounds=2.5\): expected a whole number"),
    "no length": (lambda: Cosine(0.1, rounds=0), ValueError, r"Cosine\(rounds=0\): expected >= 1"),
    "negative power": (lambda: Polynomial(0.1, power=-1.0), ValueError, r"Polynomial\(power=-1.0\): expected >= 0"),
    "no scale": (lambda: Polynomial(0.1, scale=0.0), ValueError, r"Polynomial\(scale=0.0\): expected > 0"),
    "warm up to a number": (lambda: Warmup(3, 0.1), TypeError, r"Warmup\(then=0.1\): expected a Schedule object"),
    "a schedule of schedules": (lambda: Exponential(Cosine(0.1, 5), 0.9), TypeError, "start takes no schedule"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    make, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        make()


def test_values_too_large_for_a_float_are_infinite():
    assert Exponential(1.0, gamma=2.0)(5000) == math.inf
    assert Exponential(-1.0, gamma=2.0)(5000) == -math.inf


def test_landmarks_are_where_the_value_is_known_to_turn():
    assert Milestones({0: 1.0, 7: 2.0}).landmarks == (0, 7)
    assert Cosine(0.1, rounds=10).landmarks == (0, 9)
    assert Warmup(3, Milestones({0: 1.0, 7: 2.0})).landmarks == (0, 3, 10)
