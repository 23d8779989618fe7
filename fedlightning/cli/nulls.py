"""Null where a class takes a number or a text, which the parser lets pass in places and hands on as ``None``."""

from __future__ import annotations

import inspect
from typing import Any

from jsonargparse import Namespace

from fedlightning.cli.kinds import class_at, dataclass_in
from fedlightning.core.annotated import argument_types
from fedlightning.core.errors import InvalidTypeError

_PLAIN = {bool: "true or false", int: "int", float: "float", str: "str"}


def refuse_nulls(config: Namespace) -> None:
    """Refuse null for arguments of classes that are annotated as a number, a text, or true and false.

    Arguments whose default is None are left to their classes, and so are annotations that cannot be read.

    Args:
        config: As parsed; every class has its path and arguments.

    Raises:
        TypeError: At the first such argument.
    """
    for key, value in config.items(branches=True):
        path = value.get("class_path") if isinstance(value, Namespace) else None
        if isinstance(path, str):
            _refuse(class_at(path), value.get("init_args") or Namespace(), f"{key}.init_args")


def _refuse(cls: Any, arguments: Namespace, key: str) -> None:
    """Refuse null among the arguments of a class, and among the fields of dataclasses that it takes."""
    types = argument_types(cls)
    for name, given in vars(arguments).items():
        expected, fields = types.get(name), dataclass_in(types.get(name))
        if given is None and expected in _PLAIN and not _may_be_none(cls, name):
            raise InvalidTypeError(f"{key}.{name}=null: expected {_PLAIN[expected]}.")
        if isinstance(given, Namespace) and "class_path" not in given and fields is not None:
            _refuse(fields, given, f"{key}.{name}")


def _may_be_none(cls: Any, name: str) -> bool:
    """Return whether an argument is None or required by default, in the first of a class's bases that names it."""
    signatures = (inspect.signature(vars(each)["__init__"]) for each in cls.__mro__ if "__init__" in vars(each))
    named = next((each.parameters[name] for each in signatures if name in each.parameters), None)
    return named is None or named.default in (None, inspect.Parameter.empty)
