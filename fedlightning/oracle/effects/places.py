"""Where in Python an objective may keep state, and what there is the user's own.

The attributes of a task's modules are one place. Others are outside the task: closures, globals and defaults of the
functions that an objective calls, attributes of the user's classes, context variables.
"""

from __future__ import annotations

import dis
import os
import random
import sys
import threading
from argparse import Namespace
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from io import IOBase
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedlightning.oracle.effects.buffers import BUFFERS
from fedlightning.oracle.effects.mappings import OTHER_MAPPINGS, READS_ENVIRONMENT

PLAIN = (bool, int, float, complex, str, bytes, type(None))
GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
REGISTERED = ("_parameters", "_buffers", "_modules")
"""Attributes of a module that hold what PyTorch knows of."""

_LIBRARIES = {
    *("torch", "torchvision", "torchmetrics", "numpy", "fedlightning"),
    *("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning"),
    *("transformers", "peft", "accelerate", "huggingface_hub"),
    *("pytest", "_pytest"),  # which every assert of a test module refers to
}
_OF_DATA_AND_FIGURES = {
    *("pandas", "narwhals", "dateutil", "scipy", "sklearn", "joblib"),
    *("matplotlib", "mpl_toolkits", "PIL", "packaging", "tqdm"),
}
"""Packages whose functions lead to thousands of places (options, tables of types, colours), none of which an objective
changes. Their objects are looked into where the user holds them."""
_HOLDERS = (list, tuple, dict, set, deque, MappingProxyType, *OTHER_MAPPINGS, partial, MethodType, ContextVar)
_PLAIN_OBJECTS = (SimpleNamespace, Namespace, UserDict, UserList, ChainMap, threading.local)
_STATE = (*PLAIN, *GENERATORS, *BUFFERS, *_HOLDERS, *_PLAIN_OBJECTS, np.generic, Iterator, IOBase, Tensor)
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_MISSING: Any = object()


@dataclass(frozen=True)
class Place:
    """Names a place outside a task that holds a value, or none yet.

    Attributes:
        name: For messages.
        owner: A dictionary of attributes or globals, a cell of a closure, a class, a function or a context variable.
        key: Where in it.
    """

    name: str
    owner: Any = field(repr=False)
    key: str

    def get(self) -> Any:
        """Return the value; a mark that equals no value if there is none."""
        if isinstance(self.owner, dict | type):  # of a class, its descriptors as they are
            held = self.owner if isinstance(self.owner, dict) else vars(self.owner)
            return held.get(self.key, _MISSING)
        try:
            return self.owner.get() if isinstance(self.owner, ContextVar) else getattr(self.owner, self.key)
        except (AttributeError, LookupError, ValueError):  # a cell may be empty
            return _MISSING

    def put(self, value: Any) -> None:
        """Set the value, or remove it."""
        if value is self.get():
            return
        if isinstance(self.owner, dict):
            if value is _MISSING:
                del self.owner[self.key]
            else:
                self.owner[self.key] = value
        elif isinstance(self.owner, ContextVar):
            if value is not _MISSING:  # nothing can take a value away again
                self.owner.set(value)
        elif value is _MISSING:
            delattr(self.owner, self.key)
        else:
            setattr(self.owner, self.key, value)


def places_outside(task: nn.Module) -> list[Place]:
    """Return the places outside a task where the functions that its objective may call can keep state."""
    return list(_Outside(task).found.values())


class _Outside:
    """Follows functions from the task to the functions that they name.

    Attributes:
        found: Places by owner and key.
    """

    def __init__(self, task: nn.Module) -> None:
        self.found: dict[tuple[int, str], Place] = {}
        self._registered = set(task.modules())
        self._seen: dict[int, Any] = {}
        self._waiting: list[tuple[str, FunctionType]] = []
        self._follow("objective", getattr(task, "objective", None))
        for module in task.modules():
            for name, value in vars(module).items():
                if name not in REGISTERED:
                    self._follow(name, value)
                    self._follow_class(type(value))
        for cls in own_classes(task):
            self._add_members(cls)
        while self._waiting:
            self._add_parts(*self._waiting.pop())

    def _follow(self, name: str, value: Any) -> bool:
        """Note a function to go through later; return whether the value was one."""
        if isinstance(value, partial):
            return self._follow(name, value.func)
        function = getattr(value, "__func__", value)
        if not isinstance(function, FunctionType):
            return False
        if is_followed(function.__module__) and id(function) not in self._seen:
            self._seen[id(function)] = function
            self._waiting.append((name, function))
        return True

    def _follow_class(self, cls: type) -> None:
        """Go through the methods of a class of the user's."""
        if is_users_class(cls) and is_followed(cls.__module__):
            self._add_members(cls)

    def _add_members(self, cls: type) -> None:
        if id(cls) in self._seen:
            return
        self._seen[id(cls)] = cls
        for name, member in vars(cls).items():
            if name.startswith("__") and name.endswith("__") and not isinstance(member, FunctionType):
                continue
            functions = functions_behind(member)
            for part in functions:
                if not self._follow(f"{cls.__name__}.{name}", part) and part is member:
                    self._add(f"{cls.__name__}.{name}", cls, name, member)

    def _add_parts(self, name: str, function: FunctionType) -> None:
        """Add what a function has in its closure, defaults and attributes, and the globals that it names."""
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            place = Place(variable, cell, "cell_contents")
            self._add(f"{name} {variable}", cell, "cell_contents", place.get())
        for key in ("__defaults__", "__kwdefaults__"):
            if getattr(function, key):
                self._add(f"{name} defaults", function, key, getattr(function, key))
        for key, value in vars(function).items():
            self._add(f"{name}.{key}", vars(function), key, value)
        names, assigned = names_in(function.__code__), assigned_in(function.__code__)
        for key in names:
            held = function.__globals__.get(key, sys.modules.get(key, _MISSING))  # the function may import a module
            if isinstance(held, ModuleType):
                if held is os and not READS_ENVIRONMENT.isdisjoint(names):
                    self._add("os.environ", vars(os), "environ", os.environ)
                if not is_foreign(held.__name__):
                    for other in names:
                        if other in vars(held):
                            self._add(f"{key}.{other}", vars(held), other, vars(held)[other])
            elif held is not _MISSING or key in assigned:
                self._add(f"global {key}", function.__globals__, key, held)

    def _add(self, name: str, owner: Any, key: str, value: Any) -> None:
        """Add a place if its value is state, or missing, and follow its value if that is code."""
        if self._follow(name, value) or isinstance(value, ModuleType):
            return
        if isinstance(value, type):
            self._follow_class(value)
            return
        if isinstance(value, ContextVar):
            owner, key = value, ""
        network = isinstance(value, nn.Module) and value not in self._registered
        if value is _MISSING or network or is_users(value):
            self.found.setdefault((id(owner), key), Place(name, owner, key))
            self._follow_class(type(value))


def holds_fields(kind: type) -> bool:
    """Return whether objects of a class are the user's own, or one of Python's that are made to hold attributes."""
    if issubclass(kind, _PLAIN_OBJECTS):
        return True
    return not issubclass(kind, nn.Module | type | ModuleType | Tensor) and not is_foreign(kind.__module__)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, in its ``__dict__`` and in the slots of its classes."""
    found = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                with suppress(AttributeError):  # not set, or named otherwise inside its class
                    found[name] = getattr(value, name)
    return found


def names_in(code: CodeType) -> list[str]:
    """Return the globals and attributes that a function names, and those of the functions within it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return list(dict.fromkeys((*code.co_names, *(name for each in inner for name in names_in(each)))))


def assigned_in(code: CodeType) -> set[str]:
    """Return the globals that a function assigns to, and those that the functions within it do."""
    assigns = _STORE_GLOBAL in code.co_code[::2]  # few functions do, and to take one apart costs a hundred times more
    own = {each.argval for each in dis.get_instructions(code) if each.opcode == _STORE_GLOBAL} if assigns else set()
    return own.union(*(assigned_in(each) for each in code.co_consts if isinstance(each, CodeType)))


def functions_behind(member: Any) -> tuple[Any, ...]:
    """Return the state, the user's object or the functions behind a member of a class; nothing for other members."""
    if isinstance(member, staticmethod | classmethod):
        return (member.__func__,)
    if isinstance(member, property):
        return tuple(each for each in (member.fget, member.fset) if each is not None)
    return (member,) if isinstance(member, FunctionType) or is_users(member) else ()


def own_classes(task: nn.Module) -> dict[type, None]:
    """Return the user's own classes of the task and of its modules, each once."""
    kinds = dict.fromkeys(type(module) for module in task.modules())
    return dict.fromkeys(cls for kind in kinds for cls in kind.__mro__ if not is_foreign(cls.__module__))


def is_users(value: Any) -> bool:
    """Return whether a value is the user's own: state, a function, a class or an object, but no network."""
    if isinstance(value, _STATE):
        return True
    if isinstance(value, FunctionType):
        return not is_foreign(value.__module__)
    if isinstance(value, type):
        return is_users_class(value)
    return holds_fields(type(value))


def is_users_class(value: Any) -> bool:
    """Return whether a value is a class of the user's, but no network's."""
    return isinstance(value, type) and not issubclass(value, nn.Module) and not is_foreign(value.__module__)


def is_followed(module: str | None) -> bool:
    """Return whether functions and classes of a module are gone through, for what they name."""
    return not is_foreign(module) and _package(module) not in _OF_DATA_AND_FIGURES


def is_foreign(module: str | None) -> bool:
    """Return whether a module belongs to a library or to this package, which keep no state to be watched."""
    package = _package(module)
    return package in _LIBRARIES or package in sys.stdlib_module_names - {"__main__"}


def _package(module: str | None) -> str:
    return (module or "").partition(".")[0]
