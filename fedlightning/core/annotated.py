"""Values of files in the types that a function's annotations ask for: files know no tuples, enums or paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

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
    hints = _hints(function)
    return {name: _converted(value, hints.get(name), name) for name, value in arguments.items()}


def _hints(function: Any) -> dict[str, Any]:
    """Return the annotations of a function's or a class's arguments, those included that a class hands to its bases."""
    if is_dataclass(function) or hasattr(function, "_fields") or not isinstance(function, type):
        return _resolved(function)
    hints: dict[str, Any] = {}
    for each in reversed(function.__mro__):
        hints |= _resolved(vars(each).get("__init__"))
    return hints


def _resolved(function: Any) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, SyntaxError, TypeError, AttributeError):  # annotations whose names cannot be resolved here
        return {}


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
    """Return the first type of a union that a plain value may stand for, as the command line takes it."""
    return next((each for each in members if _may_be(value, each)), None)


def _may_be(value: Any, hint: Any) -> bool:
    kind = get_origin(hint) or hint
    if kind is Literal:
        return value in get_args(hint)
    if kind is None or kind is NoneType:
        return value is None
    if not isinstance(kind, type) or isinstance(value, kind):
        return isinstance(kind, type)
    if isinstance(value, str):
        return value in kind.__members__ if issubclass(kind, Enum) else issubclass(kind, PurePath)
    if isinstance(value, list):
        return issubclass(kind, tuple | AbstractSet)
    return isinstance(value, dict) and is_dataclass(kind) and set(value) <= {each.name for each in fields(kind)}


def _from_text(value: str, kind: type, place: str) -> Any:
    if issubclass(kind, Enum):
        if value not in kind.__members__:
            raise InvalidValueError(f"{place}: {kind.__name__} has no {value!r}, only {', '.join(kind.__members__)}.")
        return kind[value]
    return kind(value) if issubclass(kind, PurePath) else value


def _from_list(value: list[Any], kind: type, members: Sequence[Any], place: str) -> Any:
    names = getattr(kind, "_fields", None)
    if names is not None:
        return _made(kind, dict(zip(names, value, strict=False)), value, place)
    is_fixed = kind is tuple and len(members) == len(value) and members[-1:] != (Ellipsis,)
    hints = list(members) if is_fixed else [*members[:1], None][:1] * len(value)
    parts = [_converted(item, hint, place) for item, hint in zip(value, hints, strict=True)]
    make: Callable[[list[Any]], Any]
    make = next((made for made in (tuple, frozenset, set) if issubclass(kind, made)), list)
    return make(parts)


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
