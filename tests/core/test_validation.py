"""Ranges of hyper-parameters: what passes, and what is said of the rest."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest

from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import (
    numbers_of_a_round,
    require,
    require_argument,
    require_instance,
    require_step_size,
)


@dataclass
class Step:
    lr: PerBlock = 0.1
    steps: int = 1
    share: float = 0.5

    def checked(self):
        require(self, "lr", above=0.0)
        require(self, "steps", at_least=1)
        require(self, "share", above=0.0, at_most=1.0)


@pytest.mark.parametrize(
    "step",
    [Step(), Step(lr=[0.1, 2]), Step(lr={"default": 1e-300}), Step(share=1), Step(share=Fraction(1, 3)), Step(steps=7)],
    ids=str,
)
def test_numbers_within_their_range_pass(step):
    step.checked()


@pytest.mark.parametrize(
    ("step", "error", "message"),
    [
        (Step(lr=0.0), ValueError, r"Step\(lr=0.0\): expected > 0\."),
        (Step(lr=[0.1, -1]), ValueError, r"Step\(lr=\[0.1, -1\]\): expected > 0\."),
        (Step(lr=[0.1, 0.2, 0.3]), ValueError, r"expected one number or a pair \[min, max\]"),
        (
            Step(lr={1: 0.1}),
            TypeError,
            "expected name prefixes or 'default' as keys, not 1. Values by round are a sched",
        ),
        (Step(lr={None: 0.1}), TypeError, "expected name prefixes or 'default' as keys, not None.$"),
        (Step(lr="0.1"), TypeError, "expected a number, not '0.1'"),
        (Step(steps=1.5), TypeError, r"Step\(steps=1.5\): expected a whole number, not 1.5"),
        (Step(steps=True), TypeError, "expected a whole number, not True"),
        (Step(steps=0), ValueError, "expected >= 1"),
        (Step(share=0.0), ValueError, "expected > 0 and <= 1"),
        (Step(share=[0.1, 0.2]), TypeError, "expected a number, not"),
        (Step(share=nan), ValueError, "expected a finite number"),
        (Step(share=-inf), ValueError, "expected a finite number"),
    ],
)
def test_other_values_are_named_with_what_was_expected(step, error, message):
    with pytest.raises(error, match=message):
        step.checked()


def test_null_passes_where_it_means_no_bound():
    require_argument(Step(), "clip", None, optional=True, above=0.0)
    require_argument(Step(), "clip", np.float32(0.5), optional=True, above=0.0)
    with pytest.raises(ValueError, match=r"Step\(clip=-1\): expected > 0, or null"):
        require_argument(Step(), "clip", -1, optional=True, above=0.0)
    with pytest.raises(TypeError, match="expected a number, not None"):
        require_argument(Step(), "clip", None, above=0.0)


@pytest.mark.parametrize(("value", "shown"), [(Step, "Step"), ("step", "'step'")])
def test_a_class_in_place_of_its_object_is_named(value, shown):
    require_instance("Owner(step", Step(), Step, "Step(0.1)")
    with pytest.raises(TypeError, match=rf"Owner\(step={shown}\): expected a Fraction object, e.g. Fraction\(1, 2\)"):
        require_instance("Owner(step", value, Fraction, "Fraction(1, 2)")


@dataclass
class Stepped:
    lr: PerBlock | None = 0.1

    def __post_init__(self):
        require_step_size(self, "lr", optional=True)


@pytest.mark.parametrize("lr", [0.1, None, [0.1, 0.2], lambda rounds: 0.0, [0.1, lambda rounds: 0.1 * rounds]])
def test_step_sizes_are_above_zero_and_those_of_schedules_may_vanish(lr):
    Stepped(lr)


@pytest.mark.parametrize(
    ("lr", "message"),
    [
        (0.0, r"Stepped\(lr=0.0\): expected > 0, or null"),
        ([0.1, 0.0], "expected > 0, or null"),
        (lambda rounds: -0.1, "is -0.1 after 0 rounds: expected >= 0"),
    ],
)
def test_other_step_sizes_are_refused(lr, message):
    with pytest.raises(ValueError, match=message):
        Stepped(lr)


def test_the_numbers_of_a_round_may_be_steps_of_zero_and_nothing_less():
    with numbers_of_a_round():
        Stepped(0.0)
        with pytest.raises(ValueError, match=r"Stepped\(lr=-0.1\): expected >= 0"):
            Stepped(-0.1)
        with pytest.raises(ValueError, match="expected > 0"):
            Step(lr=0.0).checked()
    with pytest.raises(ValueError, match="expected > 0"):
        Stepped(0.0)


def test_the_reason_for_a_bound_is_said():
    @dataclass
    class Divided:
        lr: float = 0.0

    with pytest.raises(ValueError, match=r"Divided\(lr=0.0\): expected > 0, because it is divided by\."):
        require(Divided(), "lr", above=0.0, because="it is divided by")
