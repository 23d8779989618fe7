"""Side effects of objectives on their task, seen and undone: attributes that are set, tensors that are written into."""

from __future__ import annotations

import pickle
import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from fedlightning.core.tree import flatten
from fedlightning.oracle.fingerprint import state_of

_SMALL = 10_000
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, dict, set, deque)
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_OWN = ("_parameters", "_buffers", "_modules")


def _attributes(task: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    for module in task.modules():
        for name, value in list(vars(module).items()):
            if name not in _OWN:
                yield module, name, value


def _tensors(task: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Return the attributes that are tensors, in one quick pass, because every phase needs them twice."""
    return [
        (module, name, value)
        for module in task.modules()
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]


@contextmanager
def undone(task: nn.Module) -> Iterator[None]:
    """Restore the attributes of the task and its modules when the context ends.

    Numbers, texts, tensors and the contents of lists, dicts and sets are put back, and new attributes are removed.
    Parameters and buffers are left out, because evaluations work on values of their own.
    """
    kept = [(module, name, value, _content(value)) for module, name, value in _attributes(task)]
    try:
        yield
    finally:
        known = {(id(module), name) for module, name, *_ in kept}
        modules = {place for place, _ in known}
        for module, name, _ in list(_attributes(task)):
            if id(module) in modules and (id(module), name) not in known:
                vars(module).pop(name)
        for module, name, value, content in kept:
            vars(module)[name] = _put_back(value, content)


def _content(value: Any) -> Any:
    """Return a copy of a value that may be changed in place; None for all other values."""
    if isinstance(value, _GENERATORS):
        return state_of(value)
    if isinstance(value, Tensor) and not is_functorch_wrapped_tensor(value):
        return _version(value), value.detach().clone()
    return value.copy() if type(value) in _CONTAINERS else None


def _put_back(value: Any, content: Any) -> Any:
    if isinstance(value, _GENERATORS):
        if content is not None:
            _set_state(value, content)
        return value
    if isinstance(value, Tensor):
        unchanged = content is None or (_version(value) == content[0] and (content[0] >= 0 or value.equal(content[1])))
        return value if unchanged else content[1].requires_grad_(value.requires_grad)
    if content is not None:
        value.clear()
        value.extend(content) if isinstance(value, list | deque) else value.update(content)
    return value


@contextmanager
def released(task: nn.Module) -> Iterator[None]:
    """Free the task's attributes of graphs and of batched tensors when the context ends.

    Old-style ``weight_norm`` and hooks that keep activations leave these behind, and a task that holds any can neither
    be copied nor saved.
    """
    before = {id(module): dict(vars(module)) for module in task.modules()}
    try:
        yield
    finally:
        for module, name, found in _tensors(task):
            former = before.get(id(module), {})
            if is_functorch_wrapped_tensor(found) and name not in former:
                del vars(module)[name]
                continue
            value = former[name] if is_functorch_wrapped_tensor(found) else found
            if isinstance(value, Tensor) and value.grad_fn is not None:
                value = value.detach()
            if value is not found:
                vars(module)[name] = value


class Memory:
    """Notes the attributes of a task's modules, to see later whether an objective has kept something in them.

    Noted are numbers, texts, tensors and the contents of lists, dicts and sets. Parameters and buffers are left out.
    """

    def __init__(self, task: nn.Module) -> None:
        """Note the attributes as they are now."""
        self._task = task
        self._kept = {
            id(module): {name: (value, _noted(value)) for name, value in vars(module).items() if name not in _OWN}
            for module in task.modules()
        }

    def changes(self) -> list[str]:
        """Return the names of attributes that are new or have changed since."""
        found = []
        for place, module in self._task.named_modules():
            kept = self._kept.get(id(module))
            if kept is None:
                continue
            prefix = f"self.{place}" if place else "self"
            for name, value in vars(module).items():
                if name not in _OWN and (name not in kept or _differs(value, *kept[name])):
                    found.append(f"{prefix}.{name}")
        return found

    def restore(self) -> None:
        """Put the attributes back as they were."""
        for module in self._task.modules():
            kept = self._kept.get(id(module))
            if kept is None:
                continue
            for name in [name for name in vars(module) if name not in _OWN and name not in kept]:
                del vars(module)[name]
            for name, (value, noted) in kept.items():
                if name not in vars(module) or _differs(vars(module)[name], value, noted):
                    vars(module)[name] = _put_back(value, noted)


def _noted(value: Any) -> Any:
    """Return what tells later whether a value has changed in place: a copy of its content if it is small."""
    if isinstance(value, _GENERATORS):
        return state_of(value)
    if isinstance(value, Tensor):
        small = value.numel() <= _SMALL and not is_functorch_wrapped_tensor(value)
        return (_version(value), value.detach().clone() if small else value)
    return value.copy() if type(value) in _CONTAINERS and len(value) <= _SMALL else None


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


def _differs(now: Any, before: Any, noted: Any) -> bool:
    """Return whether an attribute is another one than before, or has changed in place."""
    if isinstance(before, _PLAIN):
        return type(now) is not type(before) or (now != before and before == before)
    if now is not before:
        return isinstance(now, (*_PLAIN, *_CONTAINERS, tuple, np.generic, Tensor)) and not _same(now, before)
    if isinstance(before, _GENERATORS):
        return bool(state_of(before) != noted)
    if isinstance(before, Tensor):
        return bool(_version(before) != noted[0])
    if noted is None:
        return False
    if len(now) != len(noted):
        return True
    if isinstance(now, dict):
        return any(name not in noted or noted[name] is not value for name, value in now.items())
    return isinstance(now, list | deque) and any(one is not other for one, other in zip(now, noted, strict=True))


def _same(now: Any, before: Any) -> bool:
    """Return whether two immutable values are equal; NumPy makes a new number every time it computes one."""
    return isinstance(now, np.generic) and isinstance(before, np.generic) and now.tobytes() == before.tobytes()


def versions(data: Any) -> list[int]:
    """Return how often each tensor of a batch has been written into."""
    return [_version(leaf) for leaf in flatten(data)[0]]


def _version(tensor: Tensor) -> int:
    """Return how often a tensor has been written into; -1 for tensors of inference mode, which do not count."""
    return -1 if tensor.is_inference() else tensor._version
