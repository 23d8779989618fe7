"""What a schedule is, and which fields take one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields

import pytest

from fedlightning.core.per_block import PerBlock, per_block
from fedlightning.core.schedule import (
    PerRound,
    Schedule,
    constant,
    has_schedule,
    is_number,
    is_schedule,
    landmarks_of,
    value_at,
    varies_by_round,
    why_constant,
)


class Halving(Schedule):
    landmarks = (0, 3)

    def __call__(self, rounds):
        return 0.5**rounds


@dataclass(frozen=True)
class Method:
    lr: PerBlock = per_block(0.1)
    rho: PerBlock = per_block(1.0, constant="states are scaled by it")
    mu: PerRound = 1.0
    clip: PerRound | None = None
    beta: float = constant("it decides on phases", 0.5)
    steps: int = 3
    passes: int | None = None
    share: float = 0.5


def test_annotations_say_which_fields_vary():
    assert [each.name for each in fields(Method) if varies_by_round(each)] == ["lr", "mu", "clip"]


def test_annotations_that_are_types_say_so_too():
    kinds = {"mu": PerRound, "clip": PerRound | None, "pull": PerBlock, "share": float, "steps": int}
    made = dataclass(type("Typed", (), {"__annotations__": kinds}))
    assert [each.name for each in fields(made) if varies_by_round(each)] == ["mu", "clip", "pull"]


def test_the_others_say_why_not():
    why = {each.name: why_constant(each) for each in fields(Method) if not varies_by_round(each)}
    whole = "counts, seeds and other whole numbers stay the same"
    assert why == {
        "rho": "states are scaled by it",
        "beta": "it decides on phases",
        "steps": whole,
        "passes": whole,
        "share": "it is not declared as PerRound",
    }


@dataclass
class Kinds:
    """Annotated as types, whatever the module does."""

    a: float
    b: int
    c: float | None
    d: int | None
    e: Schedule
    f: list[float]
    g: Callable[[float], float]
    h: float | str
    i: PerRound


def test_numbers_are_known_by_their_annotation():
    texts = [each.name for each in fields(Kinds) if is_number(each)]
    for each in fields(Kinds):
        each.type = eval(each.type)
    assert texts == [each.name for each in fields(Kinds) if is_number(each)] == ["a", "b", "c", "d"]


def test_schedules_and_functions_are_told_from_numbers_and_classes():
    assert [is_schedule(each) for each in (Halving(), math.exp, 0.1, "0.1", None, float)] == [True, True, *[False] * 4]
    assert has_schedule([0.1, Halving()])
    assert has_schedule({"head": math.exp, "default": 0.1})
    assert not has_schedule([0.1, 0.2])
    assert not has_schedule("exp")


def test_a_schedule_needs_its_value():
    with pytest.raises(TypeError, match="abstract"):
        Schedule()


def test_values():
    assert [value_at(Halving(), rounds, "") for rounds in range(3)] == [1.0, 0.5, 0.25]
    assert value_at(0.1, 7, "") == 0.1
    assert value_at(None, 7, "") is None
    assert landmarks_of(Halving()) == (0, 3)
    assert landmarks_of(math.exp) == (0,)


WRONG = {
    "text": (lambda rounds: "0.1", TypeError, r"M\(lr\) is '0.1' after 4 rounds: expected a number"),
    "truth": (lambda rounds: True, TypeError, r"is True after 4 rounds: expected a number"),
    "NaN": (lambda rounds: math.nan, ValueError, r"is nan after 4 rounds: expected a finite number"),
    "infinite": (lambda rounds: math.inf, ValueError, r"is inf after 4 rounds: expected a finite number"),
    "failing": (lambda rounds: 1 / (rounds - 4), ValueError, r"M\(lr\) fails after 4 rounds: ZeroDivisionError"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_finite_number_is_named_with_its_round(name):
    entry, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        value_at(entry, 4, "M(lr)")
