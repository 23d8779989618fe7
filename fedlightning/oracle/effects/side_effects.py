"""Side effects of objectives on their task, seen and undone: attributes that are set, tensors that are written into."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from fedlightning.core.modules import named_modules, own_tensors
from fedlightning.core.tree import flatten
from fedlightning.oracle.effects.notes import LostError, Note, Notes, counts, differs, put_back, version
from fedlightning.oracle.effects.places import Place, places_outside

_OWN = ("_parameters", "_buffers", "_modules", "_is_full_backward_hook")


def _tensors(task: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Return the attributes that are tensors, in one quick pass, because every phase needs them twice."""
    return [
        (module, name, value)
        for _, module in named_modules(task)
        for name, value in vars(module).items()
        if isinstance(value, Tensor)
    ]


@contextmanager
def undone(task: nn.Module) -> Iterator[Memory]:
    """Restore what Python code keeps in the task, its modules and outside when the context ends.

    Numbers, texts, tensors, containers and the user's objects are put back, and new attributes are removed.
    Parameters and buffers are left out, because evaluations work on values of their own.
    """
    memory = Memory(task, whole=True)
    try:
        yield memory
    finally:
        memory.restore()


@contextmanager
def released(task: nn.Module) -> Iterator[None]:
    """Free the task's attributes of graphs and of batched tensors when the context ends.

    Old-style ``weight_norm`` and hooks that keep activations leave these behind, and a task that holds any can neither
    be copied nor saved.
    """
    before = {id(module): dict(vars(module)) for _, module in named_modules(task)}
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
    """Notes what Python code keeps in a task and outside, to see later whether an objective has kept something.

    Noted are numbers, texts, tensors, containers and the user's objects. Parameters and buffers of the task are left
    out.
    """

    def __init__(self, task: nn.Module, whole: bool = False, places: Sequence[Place] | None = None) -> None:
        """Note everything as it is now.

        Args:
            task: The task.
            places: Where state may lie outside the task; by default searched for.
            whole: Whether large tensors and arrays are copied, so that they can be put back.
        """
        modules = list(named_modules(task))
        own = [each for _, module in modules for each in (module, *own_tensors(module))]
        notes = Notes(whole, without=own)

        def noted(module: nn.Module) -> dict[str, tuple[Any, Note]]:
            return {name: (value, notes.of(value)) for name, value in vars(module).items() if name not in _OWN}

        self._kept = [(place, module, noted(module)) for place, module in modules]
        outside = ((place, place.get()) for place in (places_outside(task) if places is None else places))
        self._outside = [(place, value, notes.of(value)) for place, value in outside]

    def changes(self, rewritten: Collection[str] = ()) -> list[str]:
        """Return the names of what is new or has changed since.

        Args:
            rewritten: Names that may change, but for the numbers that they hold in containers and objects.
        """
        found: list[tuple[str, tuple[Any, Any, Note]]] = []
        for place, module, kept in self._kept:
            prefix = f"self.{place}" if place else "self"
            for name, value in vars(module).items():
                if name not in _OWN and (name not in kept or differs(value, *kept[name])):
                    found.append((f"{prefix}.{name}", (value, *kept.get(name, (None, None)))))
        for where, value, note in self._outside:
            if differs(where.get(), value, note):
                found.append((where.name, (where.get(), value, note)))
        return [name for name, values in found if name not in rewritten or counts(*values)]

    def restore(self) -> str | None:
        """Put everything back as it was; return the name of what could not be, because it was too large to be copied.

        Large values are copied only if ``whole`` was chosen.
        """
        lost = None
        for _, module, kept in self._kept:
            for name in [name for name in vars(module) if name not in _OWN and name not in kept]:
                del vars(module)[name]
            for name, (value, note) in kept.items():
                if name not in vars(module) or differs(vars(module)[name], value, note):
                    try:
                        vars(module)[name] = put_back(value, note)
                    except LostError:
                        lost = f"self.{name}"
        for where, value, note in self._outside:
            if differs(where.get(), value, note):
                try:
                    where.put(put_back(value, note))
                except LostError:
                    lost = where.name
        return lost


def versions(data: Any) -> list[int]:
    """Return how often each tensor of a batch has been written into."""
    return [version(leaf) for leaf in flatten(data)[0]]


def hooked_module(task: nn.Module) -> str | None:
    """Return the name of a module with a backward hook, which does not run below ``vmap``; None if there is none."""
    return next((name for name, each in named_modules(task) if each._backward_hooks or each._backward_pre_hooks), None)
