"""Side effects of objectives on their task, seen and undone: attributes that are set, tensors that are written into."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from fedlightning.core.tree import flatten
from fedlightning.oracle.notes import differs, noted, put_back, version

_OWN = ("_parameters", "_buffers", "_modules", "_is_full_backward_hook")


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

    Numbers, texts, tensors, containers and the user's objects are put back, and new attributes are removed.
    Parameters and buffers are left out, because evaluations work on values of their own.
    """
    kept = [(module, name, value, noted(value, whole=True)) for module, name, value in _attributes(task)]
    try:
        yield
    finally:
        known = {(id(module), name) for module, name, *_ in kept}
        modules = {place for place, _ in known}
        for module, name, _ in list(_attributes(task)):
            if id(module) in modules and (id(module), name) not in known:
                vars(module).pop(name)
        for module, name, value, content in kept:
            vars(module)[name] = put_back(value, content)


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

    Noted are numbers, texts, tensors, containers and the user's objects. Parameters and buffers are left out.
    """

    def __init__(self, task: nn.Module) -> None:
        """Note the attributes as they are now."""
        self._task = task
        self._kept = {
            id(module): {name: (value, noted(value)) for name, value in vars(module).items() if name not in _OWN}
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
                if name not in _OWN and (name not in kept or differs(value, *kept[name])):
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
            for name, (value, note) in kept.items():
                if name not in vars(module) or differs(vars(module)[name], value, note):
                    vars(module)[name] = put_back(value, note)


def versions(data: Any) -> list[int]:
    """Return how often each tensor of a batch has been written into."""
    return [version(leaf) for leaf in flatten(data)[0]]


def hooked_module(task: nn.Module) -> str | None:
    """Return the name of a module with a backward hook, which does not run below ``vmap``; None if there is none."""
    return next((name for name, each in task.named_modules() if each._backward_hooks or each._backward_pre_hooks), None)
