"""Side effects of objectives: attributes that are set, and tensors that are written into.

When clients are evaluated one after the other, Python code runs once for each client and step. Batched, it runs once
for each step; replayed, once for each round. Where this makes a difference, clients are computed one by one.
"""

from __future__ import annotations

import itertools
import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import IOBase
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from fedlightning.core.tree import flatten

_DEPTH = 5
_MANY = 100
_SMALL = 10_000
_LIBRARIES = {"torch", "torchvision", "torchmetrics", "lightning", "numpy", "fedlightning", "transformers"}
_PLAIN = (bool, int, float, complex, str, type(None))
_CONTAINERS = (list, dict, set)
_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)
_OWN = ("_parameters", "_buffers", "_modules")
_LOOKS = itertools.count()


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


def fingerprint(task: nn.Module) -> dict[str, Any]:
    """Collect what the task remembers in Python, by name.

    Included are the attributes of its modules, of its classes and of the objects these hold: numbers, texts, tensors,
    containers, random generators, counters, and what functions have in closures, defaults and plain globals, the task's
    own ``objective`` among them. Parameters and buffers are left out.
    """
    names = {id(module): f"self.{name}" if name else "self" for name, module in task.named_modules()}
    found: dict[str, Any] = {}
    for module, name, value in _attributes(task):
        _note(found, f"{names[id(module)]}.{name}", value, _DEPTH)
    _note(found, "objective", getattr(task.objective, "__func__", task.objective), _DEPTH)
    for cls in _own_classes(task):
        for name, value in vars(cls).items():
            if isinstance(value, (*_PLAIN, *_CONTAINERS, Tensor, FunctionType)):
                _note(found, f"{cls.__name__}.{name}", value, _DEPTH)
    return found


def _own_classes(task: nn.Module) -> dict[type, None]:
    """Return the user's own classes of the task and of its modules, each once."""
    kinds = dict.fromkeys(type(module) for module in task.modules())
    return dict.fromkeys(cls for kind in kinds for cls in kind.__mro__ if not _is_foreign(cls.__module__))


def _note(found: dict[str, Any], name: str, value: Any, depth: int) -> None:
    """Add a value, or its parts, to ``found`` in a form that can be compared later."""
    if isinstance(value, _PLAIN):
        found[name] = value
    elif isinstance(value, Tensor):
        if not is_functorch_wrapped_tensor(value) and value.numel() <= _SMALL:
            found[name] = value.detach().clone()
    elif isinstance(value, np.ndarray):
        found[name] = value.tobytes() if value.size <= _SMALL else None
    elif isinstance(value, torch.Generator):
        found[name] = value.get_state()
    elif isinstance(value, random.Random):
        found[name] = value.getstate()
    elif isinstance(value, np.random.Generator):
        found[name] = repr(value.bit_generator.state)
    elif isinstance(value, np.random.RandomState):
        found[name] = repr(value.get_state())
    elif isinstance(value, itertools.count):
        found[name] = repr(value)
    elif isinstance(value, Iterator) and not isinstance(value, IOBase):
        found[name] = next(_LOOKS)  # nobody can tell whether it has moved, so it counts as moved
    elif depth and len(found) < _SMALL:
        for part, inner in _parts(value):
            _note(found, f"{name}{part}", inner, depth - 1)


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value that are the user's own, with the suffixes of their names."""
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", inner) for key, inner in itertools.islice(value.items(), _MANY))
    elif isinstance(value, list | tuple | set | deque):
        yield ".length", len(value)
        yield from ((f"[{k}]", inner) for k, inner in enumerate(itertools.islice(value, _MANY)))
    elif isinstance(value, FunctionType) and not _is_foreign(value.__module__):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with suppress(ValueError):  # an empty cell
                yield f" {name}", cell.cell_contents
        yield " defaults", value.__defaults__ or ()
        yield from ((f".{name}", inner) for name, inner in vars(value).items())
        for name in value.__code__.co_names:
            held = value.__globals__.get(name)
            if isinstance(held, (*_PLAIN, *_CONTAINERS, deque, itertools.count, Iterator)) or _is_users(held):
                yield f" {name}", held
    elif _is_users_class(value):
        yield from ((f".{name}", inner) for name, inner in vars(value).items() if not callable(inner))
    elif not isinstance(value, nn.Module | type | ModuleType) and not _is_foreign(type(value).__module__):
        yield from ((f".{name}", inner) for name, inner in getattr(value, "__dict__", {}).items())


def _is_users(value: Any) -> bool:
    """Return whether a value is the user's own function, class or object; networks and modules do not count."""
    if isinstance(value, FunctionType):
        return not _is_foreign(value.__module__)
    if isinstance(value, type):
        return _is_users_class(value)
    return not isinstance(value, nn.Module | ModuleType | Tensor) and not _is_foreign(type(value).__module__)


def _is_users_class(value: Any) -> bool:
    return isinstance(value, type) and not issubclass(value, nn.Module) and not _is_foreign(value.__module__)


def _is_foreign(module: str | None) -> bool:
    """Return whether a module belongs to a library or to this package, which keep no state to be watched."""
    package = (module or "").partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names - {"__main__", "types"}


def changed(before: dict[str, Any], after: dict[str, Any]) -> str | None:
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
        return _state_of(value)
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
        value.extend(content) if isinstance(value, list) else value.update(content)
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
        return _state_of(value)
    if isinstance(value, Tensor):
        small = value.numel() <= _SMALL and not is_functorch_wrapped_tensor(value)
        return (_version(value), value.detach().clone() if small else value)
    return value.copy() if type(value) in _CONTAINERS and len(value) <= _SMALL else None


def _state_of(generator: Any) -> bytes:
    """Return the state of a random generator, comparable and complete."""
    if isinstance(generator, torch.Generator):
        return pickle.dumps(generator.get_state().tolist())
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.getstate() if isinstance(generator, random.Random) else generator.get_state())


def _set_state(generator: Any, state: bytes) -> None:
    """Put a random generator back to what :func:`_state_of` returned."""
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
        return isinstance(now, (*_PLAIN, *_CONTAINERS, Tensor))
    if isinstance(before, _GENERATORS):
        return bool(_state_of(before) != noted)
    if isinstance(before, Tensor):
        return bool(_version(before) != noted[0])
    if noted is None:
        return False
    if len(now) != len(noted):
        return True
    if isinstance(now, dict):
        return any(name not in noted or noted[name] is not value for name, value in now.items())
    return isinstance(now, list) and any(one is not other for one, other in zip(now, noted, strict=True))


def versions(data: Any) -> list[int]:
    """Return how often each tensor of a batch has been written into."""
    return [_version(leaf) for leaf in flatten(data)[0]]


def _version(tensor: Tensor) -> int:
    """Return how often a tensor has been written into; -1 for tensors of inference mode, which do not count."""
    return -1 if tensor.is_inference() else tensor._version
