"""Schedules given as functions."""

from __future__ import annotations

import math

import pytest

from fedlightning.schedules import Function


def test_values_are_the_functions():
    assert [Function(math.exp)(rounds) for rounds in range(3)] == [1.0, math.e, math.exp(2)]


@pytest.mark.parametrize("wrong", [0.1, float, None])
def test_what_is_no_function_is_refused(wrong):
    with pytest.raises(TypeError, match=r"Function\(function=.*expected a function of the number of rounds done"):
        Function(wrong)
