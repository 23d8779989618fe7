"""Choice of the C++ function, such as ``torch.mm``, that runs an operation with less overhead than ``torch.ops`` does.

An operation that is called by its name, as ``torch.ops.aten.mm.default`` is, looks its arguments up in a schema, and
acquires the interpreter's lock (GIL) again for every tensor that it releases: threads that replay side by side wait for
each other there. ``torch.mm`` does neither. Which operation such a function runs depends on the kinds of its arguments,
so that it is tried once for each combination of kinds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from fedlightning.core.errors import FedlightningError

without_overrides = torch._C.DisableTorchFunction
"""Context that switches off function modes and ``__torch_function__``: what they do is in a recording already."""

_known: dict[Any, Callable[..., Any]] = {}
"""The function to call, by the operation and the kinds of its arguments."""

_KEYS = (
    "CPU",
    "CUDA",
    "CompositeExplicitAutograd",
    "CompositeImplicitAutograd",
    "Autograd",
    "AutogradCPU",
    "AutogradCUDA",
)
"""Where a user may have registered a kernel that is written in Python for one of PyTorch's operations."""


def direct(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Return a function that runs an operation on arguments of these kinds, inside :data:`without_overrides`.

    Args:
        operation: A ``torch._ops.OpOverload``; any other function is returned as it is.
        args: Its arguments.
        kwargs: Its named arguments.
    """
    if not isinstance(operation, torch._ops.OpOverload):
        return operation  # type: ignore[no-any-return]
    kinds = tuple(map(_kind, args)), tuple([(name, _kind(value)) for name, value in kwargs.items()])
    key = operation, *kinds
    if key not in _known:
        _known[key] = _found(operation, args, kwargs)
    return _known[key]


def _found(operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
    """Return what runs an operation: if nothing else, what it is called by its name, without its wrapper in Python."""
    return next((each for each in _candidates(operation) if _runs(each, operation, args, kwargs)), operation._op)


def runs_python(operation: Any) -> bool:
    """Return whether an operation runs Python functions, as those of other libraries may, which no recording sees."""
    name = operation._schema.name.partition("::")[2] + f".{operation._overloadname}".removesuffix(".default")
    registered = (f"aten/{name}/{key}" in torch.library._impls for key in _KEYS)
    return operation.namespace != "aten" or any(registered)


def with_overrides(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function whose own function modes and subclasses are to act although a replay switches them off."""
    with torch._C._EnableTorchFunction():
        return function(*args, **kwargs)


def _candidates(operation: Any) -> list[Callable[..., Any]]:
    """Return the functions with an operation's name that are written in C++."""
    name = operation._schema.name.removeprefix("aten::")
    found = [getattr(place, name, None) for place in (torch, Tensor, functional)]
    return [each for each in found if isinstance(each, BuiltinFunctionType | MethodDescriptorType)]


def _runs(function: Callable[..., Any], operation: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether the first operation that a function runs is this one, with the same arguments."""
    try:
        with _First() as first, without_overrides(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*args, **kwargs)
    except _SeenError:
        return first.operation is operation and _same(first.args, args) and _same(first.kwargs, kwargs)
    except Exception:  # whatever it is, the operation can be called by its name
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
    both_nan = given != given and expected != expected
    return type(given) is type(expected) and (given == expected or both_nan)


def _kind(value: Any) -> Any:
    """Return what decides which operation a function runs, as far as it depends on one argument.

    Where these functions ask for a number, they also take a tensor without dimensions.
    """
    if isinstance(value, Tensor):
        plain = type(value) in (Tensor, nn.Parameter)
        return (Tensor, value.dim() == 0, value.is_floating_point()) if plain else type(value)
    if isinstance(value, list | tuple):  # of any length, but a single number passes where several are asked for
        return list, min(len(value), 2), frozenset(map(_kind, value))
    return type(value)
