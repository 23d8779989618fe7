"""What an objective does beside computing a value: attributes it sets, tensors it writes into.

Evaluated one client after the other, Python code runs once a client and step; batched it runs once a step, replayed
once a round. Where that makes a difference, clients are taken one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from fedlightning.nested import flatten

_PLAIN = (bool, int, float, complex, str, type(None))
_CONTAINERS = (list, dict, set)
_OWN = ("_parameters", "_buffers", "_modules")


def _attributes(task: nn.Module) -> Iterator[tuple[nn.Module, str, Any]]:
    for module in task.modules():
        for name, value in list(vars(module).items()):
            if name not in _OWN:
                yield module, name, value


def numbers(task: nn.Module) -> dict[str, Any]:
    """Plain values that the task and its modules have as attributes, by dotted name."""
    names = {id(module): name for name, module in task.named_modules()}
    return {
        f"{names[id(module)]}.{name}".lstrip("."): value
        for module, name, value in _attributes(task)
        if isinstance(value, _PLAIN)
    }


def changed(before: dict[str, Any], after: dict[str, Any]) -> str | None:
    """Name of an attribute that differs, None if none does."""
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if type(old) is not type(new) or (old != new and not (old != old and new != new)):
            return name
    return None


@contextmanager
def undone(task: nn.Module) -> Iterator[None]:
    """Put the attributes of the task and its modules back afterwards, whatever evaluations have made of them.

    Numbers, texts, tensors and the contents of lists, dicts and sets are put back. Parameters and buffers are left
    out: evaluations work on values of their own.
    """
    kept = [(module, name, value, _content(value)) for module, name, value in _attributes(task)]
    try:
        yield
    finally:
        known = {(id(module), name) for module, name, *_ in kept}
        for module, name, _ in list(_attributes(task)):
            if (id(module), name) not in known:
                vars(module).pop(name)
        for module, name, value, content in kept:
            vars(module)[name] = _put_back(value, content)


def _content(value: Any) -> Any:
    """A copy of what may be changed in place, None of anything else."""
    if isinstance(value, Tensor) and not is_functorch_wrapped_tensor(value):
        return _version(value), value.detach().clone()
    return value.copy() if type(value) in _CONTAINERS else None


def _put_back(value: Any, content: Any) -> Any:
    if isinstance(value, Tensor):
        unchanged = content is None or (_version(value) == content[0] and (content[0] >= 0 or value.equal(content[1])))
        return value if unchanged else content[1].requires_grad_(value.requires_grad)
    if content is not None:
        value.clear()
        value.extend(content) if isinstance(value, list) else value.update(content)
    return value


@contextmanager
def released(task: nn.Module) -> Iterator[None]:
    """Afterwards no attribute of the task holds a graph, or a batch of clients that is no more.

    Old-style ``weight_norm`` and hooks that keep activations leave such tensors behind, and a task that has any can
    neither be copied nor saved.
    """
    before = {(id(module), name): value for module, name, value in _attributes(task) if isinstance(value, Tensor)}
    try:
        yield
    finally:
        for module, name, value in list(_attributes(task)):
            if isinstance(value, Tensor) and is_functorch_wrapped_tensor(value):
                value = before.get((id(module), name))
                vars(module)[name] = value
            if isinstance(value, Tensor) and value.grad_fn is not None:
                vars(module)[name] = value.detach()


def versions(data: Any) -> list[int]:
    """How often each tensor of a batch has been written into."""
    return [_version(leaf) for leaf in flatten(data)[0]]


def _version(tensor: Tensor) -> int:
    """How often a tensor has been written into; -1 for those of inference mode, which do not know."""
    return -1 if tensor.is_inference() else tensor._version
