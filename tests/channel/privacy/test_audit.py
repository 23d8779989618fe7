"""The audit's bound against the binomial distribution, and against simulated runs of known privacy."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from fedlightning.channel.privacy import correct_guesses, epsilon_at_least
from fedlightning.channel.privacy.audit import p_value


def test_pure_privacy_is_the_tail_of_a_binomial():
    for epsilon in (0.0, 0.5, 3.0, 60.0):
        tail = stats.binom.sf(74, 100, 1 / (1 + math.exp(-epsilon)))
        assert p_value(75, 100, 1000, epsilon, 0.0) == pytest.approx(tail, rel=1e-9, abs=1e-300)


def test_delta_adds_what_the_theorem_says():
    chance, delta, m = 1 / (1 + math.exp(-1.0)), 1e-5, 1000
    cdf = lambda v: stats.binom.cdf(v, 100, chance)  # noqa: E731
    worst = max((cdf(74) - cdf(74 - i)) / i for i in range(1, 76))
    expected = stats.binom.sf(74, 100, chance) + 2 * m * delta * worst
    assert p_value(75, 100, m, 1.0, delta) == pytest.approx(expected, rel=1e-9)
    assert p_value(75, 100, m, 1.0, 1.0) == 1.0


def test_the_bound_is_where_the_p_value_crosses():
    bound = epsilon_at_least(80, 100, 500, 1e-6)
    assert p_value(80, 100, 500, bound, 1e-6) == pytest.approx(0.05, rel=1e-4)
    assert epsilon_at_least(50, 100, 500, 1e-6) == 0.0
    assert epsilon_at_least(90, 100, 500, 1e-6, confidence=0.99) < epsilon_at_least(90, 100, 500, 1e-6)


def test_randomised_response_is_found_but_not_exceeded():
    """Each coin is told rightly with probability e^2 / (1 + e^2): 2-private, and no mechanism tells more."""
    draw = random.Random(3)
    coins = [draw.random() < 0.5 for _ in range(2000)]
    told = [coin if draw.random() < 1 / (1 + math.exp(-2.0)) else not coin for coin in coins]
    correct = correct_guesses([float(each) for each in told], coins, 2000)
    assert 1.5 < epsilon_at_least(correct, 2000, 2000, 0.0) < 2.0


def test_guesses_are_the_extremes():
    assert correct_guesses([5.0, 1.0, 3.0, 2.0], [True, False, False, True], 2) == 2
    assert correct_guesses([5.0, 1.0, 3.0, 2.0], [True, False, False, True], 4) == 2
    for wrong in (0, 3, 6):
        with pytest.raises(ValueError, match=f"guesses={wrong}: expected an even number from 2 to 4"):
            correct_guesses([5.0, 1.0, 3.0, 2.0], [True] * 4, wrong)
