"""The hyper-parameters in force in a round: dataclasses whose schedules have become numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from fedlightning.core.errors import FedlightningError, InvalidTypeError
from fedlightning.core.schedule import (
    NOT_DECLARED,
    Schedule,
    has_schedule,
    is_number,
    value_at,
    varies_by_round,
    why_constant,
)
from fedlightning.core.validation import numbers_of_a_round, spoken_name

T = TypeVar("T")


def in_force(owner: T, rounds: int) -> T:
    """Return a dataclass object with the numbers of one round in place of schedules; itself if it has none.

    It is a pure function: every process and every client finds the same values, and so does a resumed run. Objects in
    fields, such as local solvers, are looked through as well. The new object checks its values as any other does.

    Args:
        owner: An algorithm, or another object of a dataclass.
        rounds: Number of rounds done before the round, from 0.

    Raises:
        TypeError: If a schedule gives something else than a number.
        ValueError: If a schedule gives a number that the hyper-parameter may not have.
    """
    changes: dict[str, Any] = {}
    for name, value in _held(owner):
        if _is_part(value):
            part = in_force(value, rounds)
            if part is not value:
                changes[name] = part
        elif has_schedule(value):
            changes[name] = _at(value, rounds, f"{spoken_name(owner)}({name}={value!r})")
    if not changes:
        return owner
    made: Any = owner
    try:
        with numbers_of_a_round():
            return replace(made, **changes)  # type: ignore[no-any-return]
    except FedlightningError as error:
        raise type(error)(f"After {rounds} rounds of the schedule: {error}") from error


def require_varying(owner: object) -> None:
    """Make sure that a schedule is given to hyper-parameters alone that are declared to take one.

    Only fields whose annotation says that they are numbers are looked at: in any other a function is no mistake.

    Args:
        owner: An algorithm, or another object of a dataclass, whose parts are looked through as well.

    Raises:
        TypeError: If a number that stays the same in every round is given as a schedule, which nothing would call.
    """
    made: Any = owner
    for each in fields(made):
        value = getattr(owner, each.name)
        if _is_part(value):
            require_varying(value)
        elif has_schedule(value) and is_number(each) and not varies_by_round(each):
            why = why_constant(each)
            remedy = ", or annotate it PerRound, of fedlightning.algorithms.base" if why == NOT_DECLARED else ""
            raise InvalidTypeError(
                f"{spoken_name(owner)}({each.name}={value!r}): {each.name} takes no schedule, because {why}. Give one "
                f"value for all rounds{remedy}."
            )


def scheduled(owner: object) -> dict[str, Any]:
    """Return the hyper-parameters that have a schedule, by name; those of a part are ``part.name``."""
    found: dict[str, Any] = {}
    for name, value in _held(owner):
        if _is_part(value):
            found |= {f"{name}.{inner}": each for inner, each in scheduled(value).items()}
        elif has_schedule(value):
            found[name] = value
    return found


def scheduled_numbers(owner: object, rounds: int) -> dict[str, float]:
    """Return the values that scheduled hyper-parameters have in a round, by name, block and prefix.

    Args:
        owner: An algorithm, or another object of a dataclass.
        rounds: Number of rounds done before the round.
    """
    numbers: dict[str, float] = {}
    for name, value in scheduled(owner).items():
        now = _at(value, rounds, f"{spoken_name(owner)}({name}={value!r})")
        if isinstance(now, Mapping):
            numbers |= {f"{name}/{prefix}": float(number) for prefix, number in now.items()}
        elif isinstance(now, list):
            numbers |= {f"{name}/{block}": float(number) for block, number in zip(("min", "max"), now, strict=True)}
        else:
            numbers[name] = float(now)
    return numbers


def _held(owner: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of the fields that may hold schedules, and of the parts that may hold some in turn."""
    for each in fields(owner):
        value = getattr(owner, each.name)
        if varies_by_round(each) or _is_part(value):
            yield each.name, value


def _is_part(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type | Schedule)


def _at(value: Any, rounds: int, given: str) -> Any:
    if isinstance(value, Mapping):
        return {key: value_at(entry, rounds, given) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [value_at(entry, rounds, given) for entry in value]
    return value_at(value, rounds, given)
