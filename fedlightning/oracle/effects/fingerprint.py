"""What an objective remembers in Python from call to call, wherever it lies.

When clients are evaluated one after the other, Python code runs once for each client and step. Batched, it runs once
for each step; replayed, once for each round. An objective that remembers something is computed client by client.
"""

from __future__ import annotations

import itertools
import os
import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from io import BytesIO, IOBase, StringIO, UnsupportedOperation
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from fedlightning.oracle.effects.buffers import BUFFERS, checksum, objects_in
from fedlightning.oracle.effects.mappings import OTHER_MAPPINGS, READS_ENVIRONMENT, items_of
from fedlightning.oracle.effects.places import (
    GENERATORS,
    PLAIN,
    REGISTERED,
    fields_of,
    functions_behind,
    holds_fields,
    is_followed,
    is_foreign,
    is_users,
    is_users_class,
    names_in,
    own_classes,
)

_DEPTH = 20
_MANY = 1000
_SMALL = 10_000
_LARGE = 1_000_000
_LOOKS = itertools.count()
READ_ON = -1
"""The position in a file that is read line by line, of which nobody can tell whether it has moved."""

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
            if name not in REGISTERED:
                search.note(f"self.{place}.{name}" if place else f"self.{name}", value)
    search.note("objective", getattr(task.objective, "__func__", task.objective))
    for cls in own_classes(task):
        for name, value in vars(cls).items():
            for part in functions_behind(value):
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


class _Numbers(tuple[Any, ...]):
    """The numbers of a long list."""


class _Search:
    """Goes through everything that can be reached from a task.

    Attributes:
        found: What is remembered.
    """

    def __init__(self, task: nn.Module) -> None:
        self.found: Fingerprint = {}
        self._registered = {*task.modules(), *task.parameters()}
        self._visited: dict[int, Any] = {}

    def note(self, name: str, value: Any, depth: int = _DEPTH) -> None:
        """Add a value, or its parts, in a form that can be compared later."""
        if isinstance(value, (*PLAIN, _Numbers)):
            self.found[name] = value
        elif isinstance(value, Tensor):
            if not (is_functorch_wrapped_tensor(value) or value in self._registered) and value.layout == torch.strided:
                self._note_numbers(name, value)
        elif isinstance(value, np.generic):
            self.found[name] = value.item()
        elif isinstance(value, BUFFERS) and objects_in(value) is None:
            self.found[name] = checksum(value, whole=True)
        elif isinstance(value, IOBase):
            position = position_in(value)
            self.found[name] = next(_LOOKS) if position == READ_ON else position
        elif isinstance(value, GENERATORS):
            self.found[name] = state_of(value)
        elif isinstance(value, itertools.count):
            self.found[name] = repr(value)
        elif isinstance(value, Iterator):
            self.found[name] = next(_LOOKS)  # nobody can tell whether it has moved, so it counts as moved
        elif depth and len(self.found) < _SMALL and id(value) not in self._visited:
            self._visited[id(value)] = value  # held, so that no other object gets its id
            for part, inner in self._parts(value):
                self.note(f"{name}{part}", inner, depth - 1)

    def _note_numbers(self, name: str, tensor: Tensor) -> None:
        """Note the numbers of a tensor; of a large one, how often it was written into, and a sample."""
        if tensor.numel() > _LARGE and not tensor.is_inference():
            self.found[f"{name} version"] = tensor._version
            tensor = tensor.detach().reshape(-1)[:: tensor.numel() // _MANY]
        self.found[name] = tensor.detach().clone()

    def _parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """Yield the parts of a value that are the user's own, with the suffixes of their names."""
        if isinstance(value, OTHER_MAPPINGS):
            yield from ((f"[{_in_words(key)!r}]", inner) for key, inner in items_of(value).items())
        elif isinstance(value, dict | MappingProxyType):
            yield "", _Numbers(map(_in_words, value))  # which have an order
            yield from ((f"[{key!r}]", inner) for key, inner in itertools.islice(value.items(), _MANY))
        elif isinstance(value, list | tuple | set | deque | np.ndarray):
            values = value.flat if isinstance(value, np.ndarray) else value
            yield ".length", len(values)
            if len(values) > _MANY:
                yield "", _Numbers(each for each in values if isinstance(each, PLAIN))
            yield from ((f"[{k}]", inner) for k, inner in enumerate(itertools.islice(values, _MANY)))
        elif isinstance(value, FunctionType) and is_followed(value.__module__):
            yield from _parts_of_function(value)
        elif isinstance(value, partial):
            yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
        elif isinstance(value, MethodType):
            yield from ((".__func__", value.__func__), (".__self__", value.__self__))
        elif isinstance(value, ContextVar):
            yield ".get()", value.get(None)
        elif is_users_class(value) and is_followed(value.__module__):
            yield from ((f".{name}", inner) for name, inner in vars(value).items() if not callable(inner))
        elif isinstance(value, nn.Module) and value not in self._registered:
            yield from ((f".{name}", inner) for name, inner in vars(value).items())
        elif holds_fields(type(value)):
            yield from ((f".{name}", inner) for name, inner in fields_of(value).items())


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function has in its closure, defaults and attributes, and the globals that it names."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            yield f" {name}", cell.cell_contents
    yield " defaults", function.__defaults__ or ()
    yield " keyword defaults", function.__kwdefaults__ or {}
    yield from ((f".{name}", inner) for name, inner in vars(function).items())
    names = names_in(function.__code__)
    for name in names:
        held = function.__globals__.get(name, sys.modules.get(name))  # a module may be imported by the function
        if held is os and not READS_ENVIRONMENT.isdisjoint(names):
            yield " os.environ", os.environ
        if isinstance(held, ModuleType) and not is_foreign(held.__name__):
            inside = ((other, vars(held).get(other)) for other in names)
            yield from ((f" {name}.{other}", each) for other, each in inside if is_users(each))
        elif is_users(held):
            yield f" {name}", held


def _in_words(key: Any) -> Any:
    """Return what tells keys of a dict apart, also where they are made anew; of objects their class alone."""
    if isinstance(key, PLAIN):
        return key
    return repr(key) if isinstance(key, tuple | frozenset | torch.dtype | torch.device) else type(key).__name__


def position_in(file: IOBase) -> int | None:
    """Return where an open file is read next, or :data:`READ_ON`.

    None where that is no state: at the end, where logs are written, in pipes, and in files that are only written.
    """
    try:
        if not (file.readable() and file.seekable()):
            return None
        position = file.tell()
    except UnsupportedOperation:
        return None
    except OSError:
        return READ_ON
    except Exception:  # it is closed, or a class of its own that has no more than it needs
        return None
    return position if position < _size(file, position) else None


def _size(file: IOBase, position: int) -> int:
    """Return how many bytes or characters an open file holds; one more than its position where nobody can tell."""
    if isinstance(file, BytesIO):
        return file.getbuffer().nbytes
    if isinstance(file, StringIO):
        return len(file.getvalue())
    try:
        return os.fstat(file.fileno()).st_size
    except (OSError, ValueError):
        return position + 1


def state_of(generator: Any) -> bytes:
    """Return the state of a random generator, comparable and complete."""
    if isinstance(generator, torch.Generator):
        return pickle.dumps(generator.get_state().tolist())
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.getstate() if isinstance(generator, random.Random) else generator.get_state())
