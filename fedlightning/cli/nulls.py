"""Null where a task or a data module takes a number or a text, which the parser lets pass and hands on as ``None``."""

from __future__ import annotations

import inspect
from typing import Any, get_type_hints

from jsonargparse import Namespace

from fedlightning.cli.kinds import class_at
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
            for name, given in vars(value.get("init_args") or Namespace()).items():
                expected = _expected(class_at(path), name) if given is None else None
                if expected is not None:
                    raise InvalidTypeError(f"{key}.init_args.{name}=null: expected {expected}.")


def _expected(cls: Any, name: str) -> str | None:
    """Return what an argument takes if that is plain and has a default that is not None; otherwise None."""
    for base in getattr(cls, "__mro__", ()):
        makes = vars(base).get("__init__")
        parameter = None if makes is None else inspect.signature(makes).parameters.get(name)
        if parameter is not None:
            try:
                hint: Any = get_type_hints(makes).get(name)
            except (NameError, TypeError):  # an annotation that only type checkers can read
                return None
            return None if parameter.default in (None, inspect.Parameter.empty) else _PLAIN.get(hint)
    return None
