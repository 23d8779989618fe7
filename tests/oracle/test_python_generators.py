"""Draws from the generators of Python and NumPy are seen and taken back."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fedlightning.oracle.python_generators import (
    python_generators_restored,
    python_state,
    restore_python_state,
    seed_python,
)

DRAWS = {
    "random": random.random,
    "gauss": lambda: random.gauss(0.0, 1.0),
    "NumPy, a number": np.random.rand,
    "NumPy, a normal number": np.random.normal,
    "NumPy, as many words as it has": lambda: np.random.randint(0, 2**32, 624, dtype=np.uint32),
    "NumPy, an order": lambda: np.random.permutation(5),
    "NumPy, another seed": lambda: np.random.seed(7),
    "a seed": lambda: random.seed(7),
}


def numbers():
    return random.random(), random.gauss(0.0, 1.0), *np.random.normal(size=3), np.random.rand()


@pytest.fixture(params=[0, 1], ids=["", "with a normal number waiting"])
def _seeded(request):
    seed_python(3)
    random.gauss(0.0, 1.0)
    for _ in range(request.param):
        np.random.normal()


@pytest.mark.usefixtures("_seeded")
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_is_seen_and_taken_back(draw):
    with python_generators_restored():
        before = python_state()
        assert python_state() == before
        expected = numbers()
        restore_python_state(before)
        draw()
        assert python_state() != before
        restore_python_state(before)
        assert python_state() == before
        assert numbers() == expected


@pytest.mark.usefixtures("_seeded")
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_context_leaves_the_generators_as_they_were(draw):
    def after_a_draw():
        with python_generators_restored():
            draw()
        return numbers()

    with python_generators_restored():
        expected = numbers()
    assert after_a_draw() == expected


def test_a_normal_number_that_is_put_back_between_two_contexts_waits_again():
    seed_python(3)
    np.random.normal()
    waiting = np.random.get_state()
    np.random.normal()
    with python_generators_restored():  # none waits, in the same memory
        pass
    np.random.set_state(waiting)
    with python_generators_restored():
        before = python_state()
        np.random.normal()
        assert python_state() != before


def test_another_generator_of_numpy_is_watched():
    former = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        with python_generators_restored():
            before = python_state()
            assert python_state() == before
            first = np.random.rand()
            assert python_state() != before
        assert np.random.rand() == first
    finally:
        np.random.set_bit_generator(former)
