"""Hyper-parameters that vary from round to round: what a schedule is, and how fields declare that they take one."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field
from math import isfinite
from numbers import Real
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeAlias, Union, get_args, get_origin

from fedlightning.core.errors import InvalidTypeError, InvalidValueError


class Schedule(ABC):
    """Gives a hyper-parameter its value in every round, as a function of the number of rounds done before.

    It has no state: server, clients and a resumed run all find the value of a round by themselves, and find the same.
    In Python any function from a whole number to a number serves in its place.
    """

    landmarks: tuple[int, ...] = (0,)
    """Numbers of rounds done at which the value is checked as soon as an algorithm is made."""

    @abstractmethod
    def __call__(self, rounds: int) -> float:
        """Return the value in the round that follows ``rounds`` earlier ones, ``rounds`` from 0."""


if TYPE_CHECKING:
    PerRound: TypeAlias = Any  # in a round, arithmetic on it is that of a number
else:
    PerRound: TypeAlias = float | Schedule
"""A hyper-parameter that may vary by round: a number or a :class:`Schedule`."""


def constant(reason: str, default: Any = MISSING, **options: Any) -> Any:
    """Declares a hyper-parameter that stays the same in every round.

    Args:
        reason: Why it cannot vary, as a clause: "client states are scaled by it".
        default: Value if none is given.
        options: As for ``dataclasses.field``.
    """
    return field(default=default, metadata={"constant": reason}, **options)


def varies_by_round(declared: Field[Any]) -> bool:
    """True if a field takes schedules: if its annotation says so, and :func:`constant` does not deny it.

    Annotations with ``PerRound`` or ``PerBlock`` say so, as text or as types.
    """
    if "constant" in declared.metadata:
        return False
    if isinstance(declared.type, str):
        return bool(declared.metadata.get("per_block")) or re.search(r"\bPer(Round|Block)\b", declared.type) is not None
    return bool(declared.metadata.get("per_block")) or Schedule in get_args(declared.type)


def is_number(declared: Field[Any]) -> bool:
    """True if a field's annotation, as text or as a type, is ``float`` or ``int``, with or without None."""
    kind: Any = declared.type
    if isinstance(kind, str):
        kinds = set(re.findall(r"[\w.]+", kind)) - {"None", "Optional", "typing.Optional"}
        return bool(kinds) and kinds <= {"float", "int"}
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return all(each in (float, int, NoneType) for each in members)


NOT_DECLARED = "it is not declared as PerRound"
"""Why a field takes no schedule whose owner has not said so on purpose."""


def why_constant(declared: Field[Any]) -> str:
    """Return why a field takes no schedule, as a clause.

    Args:
        declared: A field for which :func:`varies_by_round` is False.
    """
    if "constant" in declared.metadata:
        return str(declared.metadata["constant"])
    kind = str(getattr(declared.type, "__name__", declared.type))
    if kind.startswith(("int", "Optional[int]")):
        return "counts, seeds and other whole numbers stay the same"
    return NOT_DECLARED


def is_schedule(entry: object) -> bool:
    """True for schedules and for functions in their place."""
    return callable(entry) and not isinstance(entry, type)


def has_schedule(value: Any) -> bool:
    """True if a hyper-parameter, or an entry of a pair or a mapping, is a schedule."""
    if isinstance(value, Mapping):
        return any(map(is_schedule, value.values()))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return any(map(is_schedule, value))
    return is_schedule(value)


def value_at(entry: Any, rounds: int, given: str) -> Any:
    """Return the value of a hyper-parameter's entry after ``rounds`` rounds; the entry itself if it is no schedule.

    Args:
        entry: A number, a schedule, or None.
        rounds: Number of rounds done.
        given: The hyper-parameter and its owner, ``Owner(name=value)``, for messages.

    Raises:
        TypeError: If a schedule gives something else than a number.
        ValueError: If it fails, or gives an infinite number or NaN.
    """
    if not is_schedule(entry):
        return entry
    try:
        value = entry(rounds)
    except Exception as error:
        raise InvalidValueError(f"{given} fails after {rounds} rounds: {type(error).__name__}: {error}") from error
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InvalidTypeError(f"{given} is {value!r} after {rounds} rounds: expected a number.")
    if not isfinite(float(value)):
        raise InvalidValueError(f"{given} is {value!r} after {rounds} rounds: expected a finite number.")
    return value


def landmarks_of(entry: Any) -> tuple[int, ...]:
    """Return the numbers of rounds at which a schedule is checked when its owner is made."""
    return entry.landmarks if isinstance(entry, Schedule) else (0,)
