"""Objects as plain configurations and back: what checkpoints store of hyper-parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from torch import Tensor


class NotPlainError(TypeError):
    """The value cannot be written as numbers, strings, lists, dicts and class paths."""


def to_config(value: Any) -> Any:
    """``value`` in plain types; dataclass objects, classes and partials become class paths.

    Raises:
        NotPlainError: If the value (a lambda, a module, ...) has no such form.
    """
    if isinstance(value, Tensor) and value.dim() == 0:
        value = value.item()
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value)  # NumPy's numbers derive from these, but are none of them in a file
    if value is None:
        return None
    if isinstance(value, Mapping):
        return {key: to_config(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_config(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        arguments = {f.name: to_config(getattr(value, f.name)) for f in fields(value) if f.init}
        return {"class_path": _path_of(type(value)), "init_args": arguments}
    if isinstance(value, functools.partial) and not value.args:
        return {"class_path": _path_of(value.func), "init_args": to_config(value.keywords)}
    if isinstance(value, type):
        return {"class_path": _path_of(value)}
    raise NotPlainError(f"{type(value).__name__} {value!r} cannot be stored in a checkpoint as plain values.")


def from_config(config: Any) -> Any:
    """The inverse of :func:`to_config` for dataclass objects."""
    if isinstance(config, Mapping) and "class_path" in config:
        module, _, name = config["class_path"].rpartition(".")
        cls = getattr(import_module(module), name)
        return cls(**{key: from_config(item) for key, item in config.get("init_args", {}).items()})
    return config


def class_path(cls: type) -> str:
    """Dotted path of a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _path_of(function: Any) -> str:
    path = f"{function.__module__}.{function.__qualname__}"
    if "<" in path or not (inspect.isclass(function) or inspect.isfunction(function)):
        raise NotPlainError(f"{function!r} has no import path.")
    return path
