"""Checks of hyper-parameters when an object is made, with errors that name the object, the value and the range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import Field, fields, is_dataclass
from math import isfinite
from numbers import Integral, Real
from typing import Any, TypedDict

from typing_extensions import Unpack

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.per_block import takes_blocks
from fedlightning.core.schedule import has_schedule, is_schedule, landmarks_of, value_at, varies_by_round, why_constant


class Bounds(TypedDict, total=False):
    """Declares bounds of a number; a bound that is left out does not apply.

    Attributes:
        above: Values must be greater than this.
        at_least: Values must be this or greater.
        below: Values must be less than this.
        at_most: Values must be this or less.
        because: Why, as a clause for the message.
    """

    above: float
    at_least: float
    below: float
    at_most: float
    because: str


_A_ROUND: ContextVar[bool] = ContextVar("a round's numbers are checked", default=False)


def require(owner: object, *names: str, optional: bool = False, whole: bool = False, **bounds: Unpack[Bounds]) -> None:
    """Check the ranges of attributes and, for pairs and mappings, of every entry.

    A dataclass says which of its fields take several numbers (``per_block()``) and, by their annotations, which take
    whole ones (``int``) and which take schedules over rounds (``PerRound``, ``PerBlock``). Of a schedule, the values
    that are known now are checked; all others are checked in their rounds.

    Args:
        owner: Object with the attributes.
        names: Names of the attributes, which are numbers or, where declared so, ``[min, max]`` or ``{prefix: number}``.
        optional: Whether None is allowed, too.
        whole: Whether values must be whole numbers; a dataclass may say this by the annotation ``int`` instead.
        bounds: Bounds of every number.

    Raises:
        TypeError: If a value is no number, or several numbers are given where one is expected.
        ValueError: If a number is out of range, infinite or not a number.
    """
    _require_attributes(owner, names, optional, whole, bounds, bounds)


def require_step_size(owner: object, *names: str, optional: bool = False) -> None:
    """Check step sizes: they are above 0, and a schedule may give 0 in some rounds, in which nothing is stepped.

    Where a formula divides by the step size, :func:`require` with ``above=0.0`` refuses such rounds as well.

    Args:
        owner: Object with the attributes.
        names: Names of the attributes, as for :func:`require`.
        optional: Whether None is allowed, too.

    Raises:
        TypeError: If a value is no number, or several numbers are given where one is expected.
        ValueError: If a number is out of range, infinite or not a number.
    """
    in_a_round: Bounds = {"at_least": 0.0}
    _require_attributes(owner, names, optional, False, in_a_round if _A_ROUND.get() else {"above": 0.0}, in_a_round)


@contextmanager
def numbers_of_a_round() -> Iterator[None]:
    """Mark objects made within as those of one round, with numbers in place of schedules that were checked before."""
    token = _A_ROUND.set(True)
    try:
        yield
    finally:
        _A_ROUND.reset(token)


def _require_attributes(
    owner: object, names: Sequence[str], optional: bool, whole: bool, bounds: Bounds, of_schedules: Bounds
) -> None:
    """Check attributes, with bounds of numbers and of the values of schedules."""
    declared = {field.name: field for field in fields(owner)} if is_dataclass(owner) else {}
    for name in names:
        value, field = getattr(owner, name), declared.get(name)
        given = f"{spoken_name(owner)}({name}={value!r})"
        entries = _entries(value, given) if field is not None and takes_blocks(field) else [value]
        if field is not None and has_schedule(value):
            _require_varying(given, field)
        for entry in entries:
            if is_schedule(entry) and field is not None:
                _require_schedule(given, entry, of_schedules)
            else:
                _require(given, entry, whole or (field is not None and _takes_whole(field)), optional, bounds)


def spoken_name(owner: object) -> str:
    """Return what users call to make an object: its class, or what the class itself names as ``SPOKEN_NAME``."""
    name: str = vars(type(owner)).get("SPOKEN_NAME", type(owner).__name__)
    return name


def require_argument(
    owner: object, name: str, value: object, optional: bool = False, whole: bool = False, **bounds: Unpack[Bounds]
) -> None:
    """Check the range of an argument that its owner does not keep as an attribute.

    Args:
        owner: Object that is being made, for the message.
        name: Name of the argument.
        value: Value of the argument.
        optional: Whether None is allowed, too.
        whole: Whether the value must be a whole number.
        bounds: Bounds of the number.

    Raises:
        TypeError: If the value is no number.
        ValueError: If the value is out of range, infinite or not a number.
    """
    _require(f"{spoken_name(owner)}({name}={value!r})", value, whole, optional, bounds)


def require_instance(argument: str, value: object, expected: type, example: str) -> None:
    """Check that an argument is an object of a class of this package.

    Args:
        argument: Owner and name, ``Owner(name=``, for the message.
        value: Value of the argument.
        expected: The class.
        example: Expression that makes an object of the class.

    Raises:
        TypeError: If the value is anything else, e.g. the class itself.
    """
    if not isinstance(value, expected):
        shown = value.__name__ if isinstance(value, type) else repr(value)
        article = "an" if expected.__name__[0] in "AEIOU" else "a"
        raise InvalidTypeError(f"{argument}={shown}): expected {article} {expected.__name__} object, e.g. {example}.")


def _require_varying(given: str, field: Field[Any]) -> None:
    """Refuse a schedule for a field that stays the same in every round."""
    if not varies_by_round(field):
        raise InvalidTypeError(
            f"{given}: {field.name} takes no schedule, because {why_constant(field)}. Give one value for all rounds."
        )


def _require_schedule(given: str, entry: Any, bounds: Bounds) -> None:
    """Check the values of a schedule that are known now."""
    for rounds in landmarks_of(entry):
        value = value_at(entry, rounds, given)
        _require(f"{given} is {value!r} after {rounds} rounds", value, False, False, bounds)


def _takes_whole(field: Field[Any]) -> bool:
    """True for fields annotated ``int``, as text or as a type, with or without None."""
    return field.type in (int, int | None) or str(field.type).startswith(("int", "Optional[int]"))


def _require(given: str, entry: object, whole: bool, optional: bool, bounds: Bounds) -> None:
    """Check one number."""
    if optional and entry is None:
        return
    if not isinstance(entry, Integral if whole else Real) or isinstance(entry, bool):
        raise InvalidTypeError(f"{given}: expected a {'whole ' if whole else ''}number, not {entry!r}.")
    number = float(entry)
    if not isfinite(number):
        raise InvalidValueError(f"{given}: expected a finite number{', or null for no bound' if optional else ''}.")
    inside = [
        *([(number > bounds["above"], f"> {bounds['above']:g}")] if "above" in bounds else []),
        *([(number >= bounds["at_least"], f">= {bounds['at_least']:g}")] if "at_least" in bounds else []),
        *([(number < bounds["below"], f"< {bounds['below']:g}")] if "below" in bounds else []),
        *([(number <= bounds["at_most"], f"<= {bounds['at_most']:g}")] if "at_most" in bounds else []),
    ]
    if not all(holds for holds, _ in inside):
        expected = " and ".join(text for _, text in inside)
        why = f", because {bounds['because']}" if "because" in bounds else ""
        raise InvalidValueError(f"{given}: expected {expected}{', or null' if optional else ''}{why}.")


def _entries(value: Any, given: str) -> list[Any]:
    """Return the numbers of a hyper-parameter that may differ by block or prefix."""
    if isinstance(value, Mapping):
        if wrong := [key for key in value if not isinstance(key, str)]:
            rounds = " Values by round are a schedule, fedlightning.schedules.Milestones."
            raise InvalidTypeError(
                f"{given}: expected name prefixes or 'default' as keys, not {wrong[0]!r}."
                f"{rounds if isinstance(wrong[0], int) else ''}"
            )
        return list(value.values())
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [value]
    if len(value) != 2:
        raise InvalidValueError(f"{given}: expected one number or a pair [min, max].")
    return list(value)
