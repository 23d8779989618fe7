"""The Python functions that PyTorch has for its operations, which cost less to call than the operations by their names.

An operation that is called by its name, as ``torch.ops.aten.mm.default`` is, looks its arguments up in a schema, and
takes Python's lock anew for every tensor that it lets go: threads that replay side by side wait for each other there.
``torch.mm`` does neither. Which of its operations such a function runs follows from the types of its arguments, so that
it is seen once for each kind of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.core.errors import FedlightningError

without_overrides = torch._C.DisableTorchFunction
"""A context in which direct functions do nothing but their operation, whatever the user has put in their place: that
was recorded already."""

_known: dict[Any, Callable[..., Any]] = {}
"""What calls an operation with arguments of a kind."""


def direct(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Return what runs an operation with arguments like these, below :data:`without_overrides`, in the least time.

    Args:
        operation: A ``torch._ops.OpOverload``; any other function is returned as it is.
        args: Its arguments.
        kwargs: Its named arguments.
    """
    if not isinstance(operation, torch._ops.OpOverload):
        return operation  # type: ignore[no-any-return]
    kind = operation, _kind(args), tuple([(name, _kind(value)) for name, value in kwargs.items()])
    if kind not in _known:
        seen = (function for function in _candidates(operation) if _runs(function, operation, args, kwargs))
        _known[kind] = next(seen, operation._op)  # without its wrapper, which takes a third of a microsecond
    return _known[kind]


def _candidates(operation: Any) -> list[Callable[..., Any]]:
    """Return the functions with an operation's name that are written in C++."""
    if operation.namespace != "aten":
        return []
    name = operation._schema.name.removeprefix("aten::")
    found = [getattr(place, name, None) for place in (torch, Tensor, functional)]
    return [each for each in found if isinstance(each, BuiltinFunctionType | MethodDescriptorType)]


def _runs(function: Callable[..., Any], operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a function runs an operation first of all, with the arguments that the function is given."""
    try:
        with _First() as first, without_overrides():
            function(*args, **kwargs)
    except _SeenError:
        return first.operation is operation and _same(first.args, args) and _same(first.kwargs, kwargs)
    except (TypeError, RuntimeError, ValueError):  # it takes other arguments
        return False
    return False


class _SeenError(FedlightningError):
    """Ends a function at its first operation, which is not computed."""


class _First(TorchDispatchMode):
    """Keeps the first operation of a function, and ends the function there."""

    operation: Any = None
    args: Sequence[Any] = ()
    kwargs: dict[str, Any]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.operation, self.args, self.kwargs = func, args, kwargs or {}
        raise _SeenError


def _same(given: Any, expected: Any) -> bool:
    """Return whether arguments arrived as they were given, every tensor as itself."""
    if isinstance(expected, dict):
        return given.keys() == expected.keys() and all(_same(given[name], expected[name]) for name in expected)
    if isinstance(expected, list | tuple):
        alike = isinstance(given, list | tuple) and len(given) == len(expected)
        return alike and all(_same(*each) for each in zip(given, expected, strict=True))
    if isinstance(expected, Tensor):
        return given is expected
    return type(given) is type(expected) and (given == expected or given != given)


def _kind(value: Any) -> Any:
    """Return what decides which operation a function runs; a tensor without dimensions may pass for a number."""
    if isinstance(value, Tensor):
        plain = type(value) in (Tensor, nn.Parameter)
        return (Tensor, value.dim() == 0, value.is_floating_point()) if plain else type(value)
    if isinstance(value, list | tuple):  # a single number passes where several are asked for
        return list, min(len(value), 2), frozenset(map(_kind, value))
    return type(value)
