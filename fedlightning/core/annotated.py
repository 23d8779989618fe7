"""Values of files in the types that a function's annotations ask for: files know no tuples, enums or paths."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from pathlib import PurePath
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from fedlightning.core.errors import InvalidValueError


def as_annotated(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as a function expects them, where plain values stand for other types.

    Lists become tuples, sets and named tuples; names become members of an ``Enum``; texts become paths; dicts become
    dataclass objects; also within containers and optional values. Everything else stays as it is.

    Args:
        function: A function or a class.
        arguments: By name, plain or not.

    Raises:
        ValueError: If a text names no member of an ``Enum``, or a dict has not the fields of a dataclass.
    """
    hints = argument_types(function)
    return {name: _converted(value, hints.get(name), name) for name, value in arguments.items()}


def enums_named(function: Any) -> tuple[type[Enum], ...]:
    """Return the enums that the annotations of a function's or a class's arguments name, within others as well."""
    return tuple(each for hint in argument_types(function).values() for each in _enums_in(hint))


def _enums_in(hint: Any) -> Iterator[type[Enum]]:
    if isinstance(hint, type) and issubclass(hint, Enum):
        yield hint
    for each in get_args(hint):
        yield from _enums_in(each)


def argument_types(function: Any) -> dict[str, Any]:
    """Return the annotations of a function's or a class's arguments, those included that a class hands to its bases."""
    if not isinstance(function, type):
        return _resolved(function)
    if is_dataclass(function) or hasattr(function, "_fields"):
        return {name: hint for each in reversed(function.__mro__) for name, hint in _resolved(each).items()}
    hints: dict[str, Any] = {}
    for each in reversed(function.__mro__):
        makes = vars(each).get("__init__")
        if inspect.isfunction(makes):  # an argument that it names itself is not that of a base
            hints = {name: hint for name, hint in hints.items() if name not in inspect.signature(makes).parameters}
            hints |= _resolved(makes)
    return hints


def _resolved(owner: Any) -> dict[str, Any]:
    """Return the annotations of a function, or a class's own, without those whose names cannot be resolved here."""
    names = vars(sys.modules[owner.__module__]) if isinstance(owner, type) else getattr(owner, "__globals__", {})
    given = vars(owner).get("__annotations__", {}) if isinstance(owner, type) else getattr(owner, "__annotations__", {})
    hints: dict[str, Any] = {}
    for name, hint in given.items():
        with suppress(NameError, SyntaxError, TypeError, AttributeError):
            hints |= get_type_hints(SimpleNamespace(__annotations__={name: hint}), names)
    return hints


def _converted(value: Any, hint: Any, place: str) -> Any:
    origin, members = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return _converted(value, members[0], place)
    if origin in (Union, UnionType):
        return _converted(value, _member(value, members), place)
    if not isinstance(origin, type) or isinstance(value, Enum):  # members may be texts as well
        return value
    if isinstance(value, str):
        return _from_text(value, origin, place)
    if isinstance(value, list):
        return _from_list(value, origin, members, place)
    if isinstance(value, dict):
        return _from_dict(value, origin, members, place)
    return value


def _member(value: Any, members: Sequence[Any]) -> Any:
    """Return the first type of a union that a plain value may stand for, as the command line takes it.

    Where none fits and all are classes, it is the one that says what is wrong with the value.
    """
    fits = [each for each in members if _may_be(value, each)]
    if fits or not all(isinstance(get_origin(each) or each, type) for each in members):
        return fits[0] if fits else None
    if isinstance(value, str):
        return next((each for each in members if isinstance(each, type) and issubclass(each, Enum)), None)
    return next((each for each in members if isinstance(value, dict) and is_dataclass(each)), None)


def _may_be(value: Any, hint: Any) -> bool:
    kind = get_origin(hint) or hint
    if kind is Any:
        return True
    if kind is Literal:
        return value in get_args(hint)
    if kind is None or kind is NoneType:
        return value is None
    if not isinstance(kind, type):
        return False
    try:
        if isinstance(value, kind):
            return True
    except TypeError:  # protocols and typed dicts
        return is_typeddict(kind) and isinstance(value, dict)
    if isinstance(value, str):
        return _names_member(value, kind) if issubclass(kind, Enum) else issubclass(kind, PurePath)
    if isinstance(value, list):
        return issubclass(kind, tuple | AbstractSet)
    if not isinstance(value, dict) or not is_dataclass(kind):
        return False
    return set(value) <= set(inspect.signature(kind).parameters)


def _names_member(value: str, kind: type[Enum]) -> bool:
    """Return whether a text is the name of a member, or a member that is a text, as old checkpoints have it."""
    return value in kind.__members__ or (issubclass(kind, str) and value in {each.value for each in kind})


def _from_text(value: str, kind: type, place: str) -> Any:
    if issubclass(kind, Enum):
        if not _names_member(value, kind):
            raise InvalidValueError(f"{place}: {kind.__name__} has no {value!r}, only {', '.join(kind.__members__)}.")
        return kind[value] if value in kind.__members__ else kind(value)
    return kind(value) if issubclass(kind, PurePath) else value


def _from_list(value: list[Any], kind: type, members: Sequence[Any], place: str) -> Any:
    names = getattr(kind, "_fields", None)
    if names is not None:
        if len(value) > len(names):
            raise InvalidValueError(f"{place}: {kind.__name__} has {len(names)} entries, not {len(value)}.")
        return _made(kind, dict(zip(names, value, strict=False)), value, place)
    is_fixed = kind is tuple and bool(members) and members[-1] is not Ellipsis
    if is_fixed and len(members) != len(value):
        raise InvalidValueError(f"{place}: expected {len(members)} entries, not {len(value)}.")
    hints = list(members) if is_fixed else [*members[:1], None][:1] * len(value)
    parts = [_converted(item, hint, place) for item, hint in zip(value, hints, strict=True)]
    if kind is AbstractSet:
        return set(parts)
    made: Any = kind if issubclass(kind, tuple | set | frozenset) else list
    return made(parts)


def _from_dict(value: dict[Any, Any], kind: type, members: Sequence[Any], place: str) -> Any:
    if is_dataclass(kind):
        return _made(kind, value, value, place)
    if issubclass(kind, Mapping) and len(members) == 2:
        return {key: _converted(item, members[1], f"{place}[{key!r}]") for key, item in value.items()}
    return value


def _made(kind: type, arguments: Mapping[str, Any], value: Any, place: str) -> Any:
    """Make a dataclass object or a named tuple of plain values."""
    try:
        return kind(**as_annotated(kind, arguments))
    except TypeError as error:
        raise InvalidValueError(f"{place}: no {kind.__name__} can be made from {value!r}: {error}.") from error
