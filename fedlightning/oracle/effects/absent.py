"""What stands in the places of a task's tensors while these are not to be read.

An evaluation puts a client's tensors in the places of the task's own, and takes them away after the forward pass. What
reads the task in the backward pass (a hook on a tensor, activation checkpointing) would find the task's own. And what
an evaluation leaves in an attribute, such as activations, is another client's for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedlightning.core.modules import named_modules

Refuse = Callable[[str], Exception]
"""Makes the error to raise, with the name of what was read."""

_NOTHING = torch.empty(0)
_MISSING: Any = object()


class Absent(Tensor):
    """Has the shape, dtype and device of a tensor, and refuses all that would read or write its numbers.

    Attributes:
        refuse: Makes the error to raise.
    """

    refuse: Callable[[], Exception]

    @classmethod
    def of(cls, tensor: Tensor, refuse: Callable[[], Exception]) -> Absent:
        """Return what stands for a tensor."""
        absent: Absent = Tensor._make_wrapper_subclass(
            cls,
            tensor.shape,
            strides=tensor.stride() if tensor.layout == torch.strided else None,
            dtype=tensor.dtype,
            device=tensor.device,
            requires_grad=tensor.requires_grad,
        )
        absent._is_param = isinstance(tensor, nn.Parameter)  # which isinstance asks
        absent.refuse = refuse
        return absent

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Show what the tensor would be."""
        return f"Absent(shape={tuple(self.shape)}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse a function of PyTorch, before it looks at shapes, unless it tells what an absent tensor would be.

        A copy of a module that holds an absent tensor holds it, too.
        """
        if func is Tensor.__deepcopy__:
            return args[0]
        if func not in _HARMLESS:
            raise _error_of(args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse an operation that is called by its name, or from C++."""
        raise _error_of(args, kwargs)


def _error_of(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Exception:
    return next(_absent((*args, *(kwargs or {}).values()))).refuse()


def _absent(values: Iterable[Any]) -> Iterator[Absent]:
    """Yield what stands for a tensor among the arguments of an operation."""
    for value in values:
        if isinstance(value, Absent):
            yield value
        elif isinstance(value, list | tuple | dict):
            yield from _absent(value.values() if isinstance(value, dict) else value)


_ATTRIBUTES = (
    *("shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "requires_grad", "is_leaf", "grad"),
    *("grad_fn", "is_cpu", "is_cuda", "is_meta", "is_mps", "is_quantized", "is_sparse", "is_xpu"),
)
_METHODS = (
    *("size", "dim", "ndimension", "numel", "nelement", "__len__", "stride", "is_contiguous", "element_size"),
    *("get_device", "is_floating_point", "is_complex", "is_signed", "is_conj", "is_neg", "is_inference"),
)
_HARMLESS = {
    *(getattr(Tensor, name).__get__ for name in _ATTRIBUTES),
    *(getattr(Tensor, name) for name in _METHODS),
    *(torch.numel, torch.is_floating_point, torch.is_complex),
}
"""Functions that tell what a tensor is, and none of its numbers."""


class Absence:
    """Takes tensors away for a while."""

    def __init__(self, places: Iterable[tuple[dict[str, Any], str, Absent]]) -> None:
        """Name their places.

        Args:
            places: Dictionaries, keys, and what stands there.
        """
        self._places = list(places)

    @classmethod
    def of_trained(cls, task: nn.Module, buffers: Collection[str], refuse: Refuse) -> Absence:
        """Take away the trained parameters of a task, and the buffers of these names."""
        places = []
        for place, module in named_modules(task):
            for held in (vars(module)["_parameters"], vars(module)["_buffers"]):
                for leaf, tensor in held.items():
                    name = f"{place}.{leaf}" if place else leaf
                    if tensor is not None and (tensor.requires_grad or name in buffers):
                        places.append((held, leaf, Absent.of(tensor, partial(refuse, name))))
        return cls(places)

    @classmethod
    def of_attributes(cls, task: nn.Module, names: Collection[str], refuse: Refuse) -> Absence:
        """Take away the tensors in attributes of a task and its modules, ``self.net.features``, say."""
        places = _places(task, names)
        return cls((held, leaf, Absent.of(tensor, partial(refuse, name))) for held, leaf, name, tensor in places)

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Put what refuses to be read in the places until the context ends; what is written there meanwhile stays."""
        before = [(held, leaf, held.get(leaf, _MISSING), absent) for held, leaf, absent in self._places]
        try:
            try:
                for held, leaf, _, absent in before:
                    held[leaf] = absent
                yield
            finally:
                _put_back(before)
        except BaseException:  # an interrupt may have come while they were put back
            _put_back(before)
            raise


def _put_back(before: list[tuple[dict[str, Any], str, Any, Absent]]) -> None:
    for held, leaf, value, absent in before:
        if held.get(leaf) is absent:
            if value is _MISSING:
                del held[leaf]
            else:
                held[leaf] = value


def attributes(task: nn.Module) -> dict[str, Any]:
    """Return the attributes of a task and its modules by name, such as ``self.net.features``."""
    return {
        f"self.{place}.{leaf}" if place else f"self.{leaf}": value
        for place, module in named_modules(task)
        for leaf, value in vars(module).items()
    }


def _places(task: nn.Module, names: Collection[str]) -> Iterator[tuple[dict[str, Any], str, str, Tensor]]:
    """Yield where attributes lie that hold a tensor, or nothing yet, with their names and values."""
    modules = dict(named_modules(task)) if names else {}
    for name in names:
        place, _, leaf = name.removeprefix("self.").rpartition(".")
        if place in modules:
            held = vars(modules[place])
            value = held.get(leaf)
            if value is None or isinstance(value, Tensor):
                yield held, leaf, name, _NOTHING if value is None else value
