"""Notes of values that code may change in place: whether they have changed, and how they are put back."""

from __future__ import annotations

import ast
import itertools
import math
import pickle
import queue
import random
from collections import deque
from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from io import IOBase
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from fedlightning.core.errors import UsageError
from fedlightning.oracle.effects.buffers import BUFFERS, checksum, copied, objects_in, overwrite
from fedlightning.oracle.effects.fingerprint import READ_ON, position_in, state_of
from fedlightning.oracle.effects.mappings import OTHER_MAPPINGS, items_of, living, refill
from fedlightning.oracle.effects.places import GENERATORS, PLAIN, fields_of, holds_fields

_DEPTH = 50
_MOST = 100_000
_SMALL = 100_000
_SMALL_BYTES = 8 * _SMALL
_SAMPLE = 1000
_PLAIN_TYPES = frozenset(PLAIN)
_CONTAINERS = (dict, list, set, deque)
_OF_LIBRARIES = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, queue.Queue)
_KINDS: dict[str, tuple[type, ...]] = {
    "number": PLAIN,
    "generator": GENERATORS,
    "tensor": (Tensor,),
    "array": BUFFERS,
    "file": (IOBase,),
    "count": (itertools.count,),
    "fixed": (np.generic,),
    "tuple": (tuple, MappingProxyType),
    "container": _CONTAINERS,
    "mapping": OTHER_MAPPINGS,
    "object": (nn.Module, *_OF_LIBRARIES),
}

Note = Any
"""What tells later whether a value has changed in place; None for values that are not looked into."""


class LostError(UsageError):
    """A value has changed that is too large to have been copied."""


@dataclass(frozen=True, eq=False)
class _Parts:
    """Holds what a value consisted of.

    Attributes:
        held: The parts of a container or the fields of an object; None for tuples, which do not change themselves.
        inside: The parts that may themselves change in place, with notes of them.
    """

    held: Any
    inside: list[tuple[Any, Note]]


_EMPTY = _Parts({}, []), _Parts(set(), []), _Parts([], [])


class Notes:
    """Takes notes of values, each value once.

    Looked into are random generators, tensors, arrays, files, containers, networks, optimizers, and objects of the
    user's with what they hold. Tensors above 100,000 numbers and arrays above 800 KB are copied only on request; arrays
    above a megabyte that are not copied, and containers above 100,000 parts, are compared by samples.
    """

    def __init__(self, whole: bool = False, without: Iterable[Any] = ()) -> None:
        """Begin without notes.

        Args:
            whole: Whether large tensors and arrays are copied, so that they can be put back.
            without: Objects to leave out, with what they hold.
        """
        self._whole = whole
        self._seen: dict[int, Any] = {id(value): value for value in without}

    def of(self, value: Any, depth: int = _DEPTH) -> Note:
        """Return a note of a value, looking into so many levels of what it holds."""
        kind = _kind(value)
        if kind in ("number", "fixed", "other") or id(value) in self._seen or not depth:
            return None
        if kind == "container" and not value:  # the common case: a module has a dozen kinds of hooks
            return _EMPTY[0] if isinstance(value, dict) else _EMPTY[1] if isinstance(value, set) else _EMPTY[2]
        self._seen[id(value)] = value  # held, so that no other object gets its id
        if kind == "container":
            inside = self._inside(value.values() if isinstance(value, dict) else value, depth)
            return _Parts(_copied(value), inside)
        if kind == "mapping":
            items = items_of(value)
            return _Parts(items, self._inside(items.values(), depth))
        if kind == "tuple":
            inside = self._inside(value if isinstance(value, tuple) else value.values(), depth)
            return _Parts(None, inside) if inside else None
        if kind == "generator":
            return state_of(value)
        if kind == "tensor":
            if is_functorch_wrapped_tensor(value):
                return None
            copies = self._whole or value.numel() <= _SMALL or value.is_inference()
            return version(value), value.detach().clone() if copies else None, _sample(value)
        if kind == "array":
            objects = objects_in(value)
            if objects is not None:
                return _Parts(objects, self._inside(objects, depth))
            content = copied(value, math.inf if self._whole else _SMALL_BYTES)
            return checksum(value, whole=content is not None), content
        if kind == "file":
            return position_in(value)
        if kind == "count":
            return _at_same_place(value)
        fields = _fields(value)
        return _Parts(fields, self._inside(fields.values(), depth))

    def _inside(self, values: Collection[Any], depth: int) -> list[tuple[Any, Note]]:
        """Return the values that may themselves change in place, with notes of them."""
        found = []
        for value in values if len(values) <= _MOST else itertools.islice(values, _SAMPLE):
            if type(value) not in _PLAIN_TYPES:
                note = self.of(value, depth - 1)
                if note is not None:
                    found.append((value, note))
        return found


def differs(now: Any, before: Any, note: Note) -> bool:
    """Return whether an attribute is another value than before, or the same that has changed in place."""
    if now is before and (note is None or note in _EMPTY):  # the common cases
        return note is not None and len(now) > 0
    kind = _kind(before)
    if kind == "number":
        return type(now) is not type(before) or bool(now != before and before == before)
    if now is not before:
        return _kind(now) != "other" and not _equal_numbers(now, before)
    if kind == "generator":
        return bool(state_of(before) != note)
    if kind == "tensor":
        known, content, sample = note
        if known < 0:
            return not torch.equal(before, content)
        return version(before) != known or not _as_in(sample, before)
    if kind == "array" and not isinstance(note, _Parts):
        return bool(checksum(before, whole=note[1] is not None) != note[0])
    if kind == "file":
        return bool(note == READ_ON or position_in(before) != note)
    if kind == "count":
        return repr(before) != repr(note)
    if note.held is not None:
        held = living(note.held) if kind == "mapping" else note.held
        if not _same_parts(_present(now, kind), held, isinstance(now, dict)):
            return True
    return any(differs(child, child, its_note) for child, its_note in note.inside)


def counts(now: Any, before: Any, note: Note) -> bool:
    """Return whether numbers within a container or an object have changed in place since they were noted.

    Numbers that are new, or that a new value brings along, do not count.
    """
    if now is not before or not isinstance(note, _Parts):
        return False
    if note.held is not None and not isinstance(now, set):
        present = _present(now, _kind(now))
        pairs = (
            ((present[name], held) for name, held in note.held.items() if name in present)
            if isinstance(note.held, dict)
            else zip(present, note.held, strict=False)
        )
        if any(type(held) in _PLAIN_TYPES and differs(new, held, None) for new, held in pairs):
            return True
    return any(counts(child, child, its_note) for child, its_note in note.inside)


def put_back(value: Any, note: Note) -> Any:
    """Return a value as it was when it was noted, changed in place where that is possible.

    Raises:
        LostError: If it has changed and was too large to be copied.
    """
    if note is None or not differs(value, value, note):
        return value
    kind = _kind(value)
    if kind == "generator":
        _set_state(value, note)
        return value
    if kind == "file":
        if note not in (None, READ_ON) and not value.closed:
            value.seek(note)
        return value
    if kind == "tensor" or (kind == "array" and not isinstance(note, _Parts)):
        content = note[1]
        if content is None:
            raise LostError("it is too large to be put back")
        return _overwritten(value, content)
    if kind == "count":
        return _at_same_place(note)
    if note.held is not None:
        _refill(value, note.held, kind)
    for child, its_note in note.inside:
        put_back(child, its_note)
    return value


def _overwritten(value: Any, content: Any) -> Any:
    """Return the value with its former content; a copy of it where the value cannot be written into."""
    if isinstance(value, BUFFERS):
        overwrite(value, content)
        return value
    try:
        value.data.copy_(content)
    except RuntimeError:  # of another shape by now, expanded, or of inference mode
        return content.requires_grad_(value.requires_grad)
    return value


def _refill(value: Any, held: Any, kind: str) -> None:
    if kind == "array":
        for place, (present, part) in enumerate(zip(value.flat, held, strict=True)):
            if present is not part:
                value.flat[place] = part
        return
    if kind == "mapping":
        refill(value, held)
        return
    if kind != "container":
        for name in _fields(value).keys() - held.keys():
            delattr(value, name)
        for name, part in held.items():
            object.__setattr__(value, name, part)
        return
    value.clear()
    if isinstance(value, dict):
        for key, part in held.items():
            value[key] = part
    elif isinstance(value, set):
        value.update(held)
    else:
        value.extend(held)


def _copied(container: Any) -> Any:
    """Return what a container holds, in a plain one."""
    if len(container) > _MOST:
        return None
    return (dict if isinstance(container, dict) else set if isinstance(container, set) else list)(container)


def _present(value: Any, kind: str) -> Any:
    """Return what a value holds now: its parts, or its fields by name."""
    if kind == "array":
        return objects_in(value)
    if kind == "mapping":
        return items_of(value)
    return value if kind == "container" else _fields(value)


def _at_same_place(count: itertools.count[Any]) -> itertools.count[Any]:
    """Return a new counter that goes on where another one is, which its text tells; copies end with Python 3.14."""
    arguments = repr(count).partition("(")[2]
    try:
        return itertools.count(*ast.literal_eval(f"({arguments[:-1]},)"))
    except (ValueError, SyntaxError):  # it counts in fractions or objects
        return copy(count)


def _fields(value: Any) -> dict[str, Any]:
    return dict(vars(value)) if isinstance(value, (nn.Module, *_OF_LIBRARIES)) else fields_of(value)


def _sample(tensor: Tensor) -> Tensor | None:
    """Return some numbers of a parameter, because ``parameter.data`` is written without a new version."""
    if not isinstance(tensor, nn.Parameter) or not tensor.numel() or tensor.layout != torch.strided:
        return None
    return tensor.detach().reshape(-1)[:: 1 + tensor.numel() // _SAMPLE].clone()


def _as_in(sample: Tensor | None, tensor: Tensor) -> bool:
    now = None if sample is None else _sample(tensor)
    return sample is None or (now is not None and torch.equal(now.nan_to_num(), sample.nan_to_num()))


def _kind(value: Any) -> str:
    kind: Any = type(value)
    return _kind_of(kind)


@lru_cache(maxsize=1024)
def _kind_of(kind: Any) -> str:
    """Return how values of a type are noted; ``other`` for those that are not looked into."""
    for name, classes in _KINDS.items():
        if issubclass(kind, classes):
            return name
    return "object" if holds_fields(kind) else "other"


def version(tensor: Tensor) -> int:
    """Return how often a tensor has been written into; -1 for tensors of inference mode, which do not count."""
    return -1 if tensor.is_inference() else tensor._version


def _same_parts(now: Any, held: Any, ordered: bool) -> bool:
    if len(now) != len(held) or (ordered and isinstance(now, dict) and not all(map(_is_same_key, now, held))):
        return False
    if isinstance(now, dict):
        return all(name in held and _same(value, held[name]) for name, value in now.items())
    return bool(now == held) if isinstance(now, set) else all(map(_same, now, held))


def _is_same_key(now: Any, before: Any) -> bool:
    if now is before:
        return True
    try:
        return bool(now == before)
    except Exception:  # keys that compare number by number, as tensors do
        return False


def _same(now: Any, before: Any) -> bool:
    if now is before:
        return True
    return not differs(now, before, None) if isinstance(before, PLAIN) else _equal_numbers(now, before)


def _equal_numbers(now: Any, before: Any) -> bool:
    """Return whether two numbers of NumPy are equal, which makes a new one every time it computes."""
    return isinstance(now, np.generic) and isinstance(before, np.generic) and now.tobytes() == before.tobytes()


def _set_state(generator: Any, state: bytes) -> None:
    """Put a random generator back to what :func:`~fedlightning.oracle.effects.fingerprint.state_of` returned."""
    value = pickle.loads(state)
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.tensor(value, dtype=torch.uint8))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = value
    elif isinstance(generator, random.Random):
        generator.setstate(value)
    else:
        generator.set_state(value)
