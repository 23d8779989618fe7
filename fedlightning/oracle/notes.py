"""Notes of values that code may change in place: whether they have changed, and how they are put back."""

from __future__ import annotations

import itertools
import pickle
import random
from collections import deque
from collections.abc import Iterable
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from fedlightning.oracle.fingerprint import fields_of, holds_fields, state_of

_DEPTH = 5
_MANY = 100
_SMALL = 10_000
_NUMBERS = (bool, int, float, complex, str, bytes, type(None))
_KINDS: dict[str, tuple[type, ...]] = {
    "number": _NUMBERS,
    "generator": (torch.Generator, random.Random, np.random.Generator, np.random.RandomState),
    "tensor": (Tensor,),
    "array": (np.ndarray,),
    "count": (itertools.count,),
    "fixed": (np.generic, tuple),
}

Note = Any
"""What tells later whether a value has changed in place; None for values that are not looked into."""


def noted(value: Any, whole: bool = False, depth: int = _DEPTH) -> Note:
    """Return a note of a value.

    Looked into are random generators, tensors, arrays, containers, and objects of the user's with what they hold.

    Args:
        value: An attribute.
        whole: Whether large tensors are copied, too, so that they can be put back.
        depth: How far into what it holds.
    """
    kind = _kind(value)
    if kind in ("number", "fixed", "other"):
        return None
    if kind == "container":
        if not value:
            return value.copy(), ()
        inside = value.values() if isinstance(value, dict) else value
        return (value.copy(), _inside(inside, whole, depth)) if len(value) <= _SMALL else None
    if kind == "generator":
        return state_of(value)
    if kind == "tensor":
        if is_functorch_wrapped_tensor(value):
            return None
        return version(value), value.detach().clone() if whole or value.numel() <= _SMALL else value
    if kind == "array":
        return value.copy() if whole or value.size <= _SMALL else None
    if kind == "count":
        return copy(value)
    fields = fields_of(value)
    return (fields, _inside(fields.values(), whole, depth)) if depth else None


def differs(now: Any, before: Any, note: Note) -> bool:
    """Return whether an attribute is another value than before, or the same that has changed in place."""
    kind = _kind(before)
    if kind == "number":
        return type(now) is not type(before) or bool(now != before and before == before)
    if now is not before:
        return _kind(now) != "other" and not _equal_numbers(now, before)
    if note is None:
        return False
    if kind == "generator":
        return bool(state_of(before) != note)
    if kind == "tensor":
        return bool(version(before) != note[0])
    if kind == "array":
        return bool(before.tobytes() != note.tobytes())
    if kind == "count":
        return repr(before) != repr(note)
    held, inside = note
    return not _same_parts(now if kind == "container" else fields_of(now), held) or any(
        differs(child, child, its_note) for child, its_note in inside
    )


def put_back(value: Any, note: Note) -> Any:
    """Return a value as it was when it was noted, changed in place where that is possible."""
    if note is None:
        return value
    kind = _kind(value)
    if kind == "generator":
        _set_state(value, note)
        return value
    if kind == "tensor":
        known, content = note
        unchanged = version(value) == known and (known >= 0 or value.equal(content))
        return value if unchanged else content.requires_grad_(value.requires_grad)
    if kind == "array":
        np.copyto(value, note)
        return value
    if kind == "count":
        return copy(note)
    held, inside = note
    if kind == "container":
        value.clear()
        value.extend(held) if isinstance(value, list | deque) else value.update(held)
    else:
        for name in fields_of(value).keys() - held.keys():
            delattr(value, name)
        for name, part in held.items():
            object.__setattr__(value, name, part)
    for child, its_note in inside:
        put_back(child, its_note)
    return value


def _kind(value: Any) -> str:
    kind: Any = type(value)
    return _kind_of(kind)


@lru_cache(maxsize=1024)
def _kind_of(kind: Any) -> str:
    """Return how values of a type are noted; ``other`` for those that are not looked into."""
    for name, classes in _KINDS.items():
        if issubclass(kind, classes):
            return name
    if kind in (list, dict, set, deque):
        return "container"
    return "object" if holds_fields(kind) else "other"


def version(tensor: Tensor) -> int:
    """Return how often a tensor has been written into; -1 for tensors of inference mode, which do not count."""
    return -1 if tensor.is_inference() else tensor._version


def _inside(values: Iterable[Any], whole: bool, depth: int) -> list[tuple[Any, Note]]:
    """Return the values that may themselves change in place, with notes of them."""
    if not depth:
        return []
    found = ((value, noted(value, whole, depth - 1)) for value in itertools.islice(values, _MANY))
    return [(value, note) for value, note in found if note is not None]


def _same_parts(now: Any, held: Any) -> bool:
    if len(now) != len(held):
        return False
    if isinstance(now, dict):
        return all(name in held and _same(value, held[name]) for name, value in now.items())
    return now == held if isinstance(now, set) else all(map(_same, now, held))


def _same(now: Any, before: Any) -> bool:
    return now is before or (isinstance(before, _NUMBERS) and not differs(now, before, None))


def _equal_numbers(now: Any, before: Any) -> bool:
    """Return whether two numbers of NumPy are equal, which makes a new one every time it computes."""
    return isinstance(now, np.generic) and isinstance(before, np.generic) and now.tobytes() == before.tobytes()


def _set_state(generator: Any, state: bytes) -> None:
    """Put a random generator back to what :func:`~fedlightning.oracle.fingerprint.state_of` returned."""
    value = pickle.loads(state)
    if isinstance(generator, torch.Generator):
        generator.set_state(torch.tensor(value, dtype=torch.uint8))
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = value
    elif isinstance(generator, random.Random):
        generator.setstate(value)
    else:
        generator.set_state(value)
