"""What an objective remembers in Python from call to call, wherever it lies.

When clients are evaluated one after the other, Python code runs once for each client and step. Batched, it runs once
for each step; replayed, once for each round. An objective that remembers something is computed client by client.
"""

from __future__ import annotations

import itertools
import pickle
import random
import sys
import threading
from argparse import Namespace
from array import array
from collections import UserDict, UserList, deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from io import IOBase
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

_DEPTH = 20
_MANY = 1000
_SMALL = 10_000
_LIBRARIES = {"torch", "torchvision", "torchmetrics", "lightning", "numpy", "fedlightning", "transformers"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_BYTES = (array, bytearray, np.ndarray)
_HOLDERS = (list, tuple, dict, set, deque, partial, MethodType, ContextVar, threading.local)
_STATE = (*_PLAIN, *_GENERATORS, *_BYTES, *_HOLDERS, np.generic, Iterator, Tensor)
_PLAIN_OBJECTS = (SimpleNamespace, Namespace, UserDict, UserList, threading.local)
_TORCH = ("_parameters", "_buffers", "_modules")
_LOOKS = itertools.count()

Fingerprint = dict[str, Any]
"""What is remembered, in a form that can be compared, by where it lies."""


def fingerprint(task: nn.Module) -> Fingerprint:
    """Collect what a task remembers in Python, by name.

    Included are the attributes of its modules, of its classes and of the objects these hold: numbers, texts, tensors,
    containers, random generators, counters, context variables, modules outside the task, and what functions have in
    closures, defaults and globals, the task's own ``objective`` among them. Its parameters and buffers are left out.
    """
    search = _Search(task)
    for place, module in task.named_modules():
        for name, value in list(vars(module).items()):
            if name not in _TORCH:
                search.note(f"self.{place}.{name}" if place else f"self.{name}", value)
    search.note("objective", getattr(task.objective, "__func__", task.objective))
    for cls in _own_classes(task):
        for name, value in vars(cls).items():
            for part in _functions(value):
                search.note(f"{cls.__name__}.{name}", part)
    return search.found


def changed(before: Fingerprint, after: Fingerprint) -> str | None:
    """Return the name of an entry that differs between two fingerprints; None if they are equal."""
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if type(old) is not type(new):
            return name
        if isinstance(old, Tensor) and isinstance(new, Tensor):
            if old.shape != new.shape or not torch.equal(old.nan_to_num(), new.nan_to_num()):
                return name
        elif old != new and not (old != old and new != new):
            return name
    return None


class _Search:
    """Goes through everything that can be reached from a task.

    Attributes:
        found: What is remembered.
    """

    def __init__(self, task: nn.Module) -> None:
        self.found: Fingerprint = {}
        self._registered = set(task.modules())
        self._visited: dict[int, Any] = {}

    def note(self, name: str, value: Any, depth: int = _DEPTH) -> None:
        """Add a value, or its parts, in a form that can be compared later."""
        if isinstance(value, _PLAIN):
            self.found[name] = value
        elif isinstance(value, Tensor):
            if not is_functorch_wrapped_tensor(value) and value.layout == torch.strided and value.numel() <= _SMALL:
                self.found[name] = value.detach().clone()
        elif isinstance(value, np.generic):
            self.found[name] = value.item()
        elif isinstance(value, _BYTES):
            if (value.nbytes if isinstance(value, np.ndarray) else len(value)) <= 8 * _SMALL:
                self.found[name] = bytes(value) if isinstance(value, bytearray) else value.tobytes()
        elif isinstance(value, _GENERATORS):
            self.found[name] = state_of(value)
        elif isinstance(value, itertools.count):
            self.found[name] = repr(value)
        elif isinstance(value, Iterator) and not isinstance(value, IOBase):
            self.found[name] = next(_LOOKS)  # nobody can tell whether it has moved, so it counts as moved
        elif depth and len(self.found) < _SMALL and id(value) not in self._visited:
            self._visited[id(value)] = value  # held, so that no other object gets its id
            for part, inner in self._parts(value):
                self.note(f"{name}{part}", inner, depth - 1)

    def _parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield the parts of a value that are the user's own, with the suffixes of their names."""
        if isinstance(value, dict):
            yield from ((f"[{key!r}]", inner) for key, inner in itertools.islice(value.items(), _MANY))
        elif isinstance(value, list | tuple | set | deque):
            yield ".length", len(value)
            yield from ((f"[{k}]", inner) for k, inner in enumerate(itertools.islice(value, _MANY)))
        elif isinstance(value, FunctionType) and not _is_foreign(value.__module__):
            yield from _parts_of_function(value)
        elif isinstance(value, partial):
            yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
        elif isinstance(value, MethodType):
            yield from ((".__func__", value.__func__), (".__self__", value.__self__))
        elif isinstance(value, ContextVar):
            yield ".get()", value.get(None)
        elif _is_users_class(value):
            yield from ((f".{name}", inner) for name, inner in vars(value).items() if not callable(inner))
        elif isinstance(value, nn.Module) and value not in self._registered:
            yield from ((f".{name}", inner) for name, inner in vars(value).items() if name != "_parameters")
        elif holds_fields(type(value)):
            yield from ((f".{name}", inner) for name, inner in fields_of(value).items())


def holds_fields(kind: type) -> bool:
    """Return whether objects of a class are the user's own, or one of Python's that are made to hold attributes."""
    if issubclass(kind, _PLAIN_OBJECTS):
        return True
    return not issubclass(kind, nn.Module | type | ModuleType | Tensor) and not _is_foreign(kind.__module__)


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


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function has in its closure, defaults and attributes, and the globals that it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            yield f" {name}", cell.cell_contents
    yield " defaults", function.__defaults__ or ()
    yield " keyword defaults", function.__kwdefaults__ or {}
    yield from ((f".{name}", inner) for name, inner in vars(function).items())
    names = _names(function.__code__)
    for name in names:
        held = function.__globals__.get(name, sys.modules.get(name))  # a module may be imported by the function
        if isinstance(held, ModuleType) and not _is_foreign(held.__name__):
            inside = ((other, vars(held).get(other)) for other in names)
            yield from ((f" {name}.{other}", each) for other, each in inside if _is_users(each))
        elif _is_users(held):
            yield f" {name}", held


def _names(code: CodeType) -> list[str]:
    """Return the globals and attributes that a function names, and those of the functions within it."""
    inner = (constant for constant in code.co_consts if isinstance(constant, CodeType))
    return list(dict.fromkeys((*code.co_names, *(name for each in inner for name in _names(each)))))


def _functions(member: Any) -> tuple[Any, ...]:
    """Return the state or the functions behind a member of a class; nothing for other members."""
    if isinstance(member, staticmethod | classmethod):
        return (member.__func__,)
    if isinstance(member, property):
        return tuple(each for each in (member.fget, member.fset) if each is not None)
    return (member,) if isinstance(member, (*_STATE, FunctionType)) else ()


def _own_classes(task: nn.Module) -> dict[type, None]:
    """Return the user's own classes of the task and of its modules, each once."""
    kinds = dict.fromkeys(type(module) for module in task.modules())
    return dict.fromkeys(cls for kind in kinds for cls in kind.__mro__ if not _is_foreign(cls.__module__))


def _is_users(value: Any) -> bool:
    """Return whether a value is the user's own: state, a function, a class or an object, but no network."""
    if isinstance(value, _STATE):
        return True
    if isinstance(value, FunctionType):
        return not _is_foreign(value.__module__)
    if isinstance(value, type):
        return _is_users_class(value)
    return holds_fields(type(value))


def _is_users_class(value: Any) -> bool:
    return isinstance(value, type) and not issubclass(value, nn.Module) and not _is_foreign(value.__module__)


def _is_foreign(module: str | None) -> bool:
    """Return whether a module belongs to a library or to this package, which keep no state to be watched."""
    package = (module or "").partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names - {"__main__"}


def state_of(generator: Any) -> bytes:
    """Return the state of a random generator, comparable and complete."""
    if isinstance(generator, torch.Generator):
        return pickle.dumps(generator.get_state().tolist())
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.getstate() if isinstance(generator, random.Random) else generator.get_state())
