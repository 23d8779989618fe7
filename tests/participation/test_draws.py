"""Cohorts that are drawn, against what they promise."""

from __future__ import annotations

import time

import pytest
import torch

from fedlightning.participation import (
    Full,
    Participation,
    Poisson,
    Selection,
    Uniform,
)


def test_full_is_everyone():
    assert Full().cohort(3, seed=0, round_index=5, phase=0) == [0, 1, 2]


def test_uniform_is_a_function_of_seed_round_and_phase():
    rule = Uniform(size=5)
    cohort = rule.cohort(50, 1, 2, 0)
    assert cohort == rule.cohort(50, 1, 2, 0) == sorted(set(cohort))
    assert len({tuple(rule.cohort(50, *key)) for key in ((1, 2, 0), (1, 2, 1), (1, 3, 0), (2, 2, 0))}) == 4


def test_uniform_is_uniform():
    counts = [0] * 10
    for round_index in range(2000):
        for client in Uniform(fraction=0.3).cohort(10, 0, round_index, 0):
            counts[client] += 1
    assert sum(counts) == 6000
    assert all(abs(count - 600) < 5 * (600 * 0.7) ** 0.5 for count in counts)  # five standard deviations


def test_sampling_costs_nothing_of_order_n():
    start = time.perf_counter()
    cohort = Uniform(size=10).cohort(10**12, 0, 0, 0)
    assert len(set(cohort)) == 10
    assert time.perf_counter() - start < 1


@pytest.mark.parametrize("wrong", [{}, {"size": 1, "fraction": 0.1}, {"size": 0}, {"fraction": 0.0}, {"fraction": 1.5}])
def test_wrong_arguments_are_named(wrong):
    with pytest.raises(ValueError, match=r"Uniform\("):
        Uniform(**wrong)


@pytest.mark.parametrize(
    ("fraction", "clients", "size"), [(0.5, 5, 3), (0.5, 7, 4), (0.1, 25, 3), (0.3, 5, 2), (1.0, 5, 5)]
)
def test_halves_are_rounded_up(fraction, clients, size):
    assert len(Uniform(fraction=fraction).cohort(clients, 0, 0, 0)) == size


def test_a_small_fraction_is_one_client():
    assert len(Uniform(fraction=0.01).cohort(5, 0, 0, 0)) == 1


def test_too_large_a_cohort():
    with pytest.raises(ValueError, match=r"Uniform\(size=6\): the cohort is larger than the federation of 5 clients"):
        Uniform(size=6).check(5)


def test_poisson_draws_every_client_by_its_own_coin():
    rounds, rate = 4000, 0.2
    taken = torch.zeros(rounds, 12)
    for round_index in range(rounds):
        ids = Poisson(rate).cohort(12, 0, round_index, 0)
        assert ids == sorted(set(ids))
        taken[round_index, ids] = 1
    spread = (rate * (1 - rate) / rounds) ** 0.5
    assert (taken.mean(0) - rate).abs().max() < 5 * spread  # the first and the last client as often as all others
    assert (torch.corrcoef(taken.T) - torch.eye(12)).abs().max() < 5 / rounds**0.5
    sizes = taken.sum(1)
    assert float(sizes.var()) == pytest.approx(12 * rate * (1 - rate), rel=0.1)  # binomial
    assert (sizes == 0).float().mean() == pytest.approx(0.8**12, abs=0.02)


def test_poisson_is_a_function_of_seed_round_and_phase():
    rule = Poisson(0.3)
    assert rule.cohort(50, 1, 2, 0) == rule.cohort(50, 1, 2, 0)
    assert len({tuple(rule.cohort(50, *key)) for key in ((1, 2, 0), (1, 2, 1), (1, 3, 0), (2, 2, 0))}) == 4


def test_poisson_costs_nothing_of_order_n():
    start = time.perf_counter()
    assert 60 < len(Poisson(1e-10).cohort(10**12, 0, 0, 0)) < 140
    assert time.perf_counter() - start < 1


def test_poisson_at_its_ends():
    assert Poisson(1.0).cohort(4, 0, 0, 0) == [0, 1, 2, 3]
    assert Poisson(1.0).fewest(4) == 4
    assert Poisson(0.5).fewest(4) == 0
    assert Poisson(1e-9).select(4, 0, 0, 0) == Selection([], 0)
    for wrong in (0.0, 1.5):
        with pytest.raises(ValueError, match=r"Poisson\(rate="):
            Poisson(wrong)


def test_the_mean_size_of_a_cohort_is_no_secret():
    assert Poisson(0.25).expected(10) == 2.5
    assert Uniform(fraction=0.5).expected(5) == 3.0
    assert Full().expected(7) == 7.0


class EverySecond(Participation):
    """Clients with even numbers in even rounds, all others in odd ones."""

    def cohort(self, num_clients, seed, round_index, phase):
        return list(range(round_index % 2, num_clients, 2))


def test_rules_of_ones_own_divide_by_the_clients_of_each_round():
    assert EverySecond().expected(5) is None
