import time

import pytest

from fedlightning.participation import Full, Uniform


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


def test_a_small_fraction_is_one_client():
    assert len(Uniform(fraction=0.01).cohort(5, 0, 0, 0)) == 1


def test_too_large_a_cohort():
    with pytest.raises(ValueError, match=r"Uniform\(size=6\): the cohort is larger than the federation of 5 clients"):
        Uniform(size=6).check(5)
