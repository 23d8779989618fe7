"""Functions that show an objective numbers of its tensors, which nothing can replay."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedlightning.core.errors import UsageError


class Refused(TorchFunctionMode):
    """Refuses functions, such as those that read numbers of tensors, which a replay would repeat as they were.

    Attributes:
        has_refused: Whether one was called, which the objective may have caught.
    """

    def __init__(self, refused: frozenset[Any]) -> None:
        """Name the functions."""
        super().__init__()
        self._refused = refused
        self.has_refused = False
        self._dispatch_modes = torch._C._len_torch_dispatch_stack()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_objectives = torch._C._len_torch_dispatch_stack() >= self._dispatch_modes  # and not what a recorder calls
        if is_objectives and (func in self._refused or _reads_a_list(func, args, kwargs or {})):
            self.has_refused = True
            raise UsageError(f"{func.__name__} reads numbers of a tensor")
        return func(*args, **(kwargs or {}))


def _reads_a_list(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether a function makes a tensor of a list of tensors, as ``torch.tensor([x])`` and ``y[:, [x]]`` do."""
    if func in _INDEXING:
        places = args[1] if isinstance(args[1], tuple) else (args[1],)  # a tuple of tensors is no list of their numbers
        return any(_holds_a_tensor(each) for each in places)
    return func in _MAKING and any(map(_holds_a_tensor, (*args, *kwargs.values())))


def _holds_a_tensor(values: Any) -> bool:
    """Return whether there is a tensor in a list, or in lists in it."""
    return isinstance(values, list | tuple) and any(isinstance(v, Tensor) or _holds_a_tensor(v) for v in values)


_MAKING = frozenset({torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor, Tensor.new})

_INDEXING = frozenset({Tensor.__getitem__, Tensor.__setitem__})


def _methods(*names: str) -> frozenset[Any]:
    return frozenset(getattr(Tensor, name) for name in names)


NOTHING: frozenset[Any] = frozenset()
"""Refuses no function."""

SEEN_READS = _methods("__bool__", "__complex__", "__contains__", "__float__", "__index__", "__int__", "item")
"""Read numbers by operations, so that a recorder gives up and every call runs anew."""

HIDDEN_READS = _methods(
    *(
        "__array__",
        "__deepcopy__",
        "__dlpack__",
        "__format__",
        "__reduce_ex__",
        "__repr__",
        "apply_",
        "data_ptr",
        "map_",
        "map2_",
        "numpy",
        "set_",
        "storage",
        "tensor_split",
        "tolist",
        "untyped_storage",
    )
).union({torch.ctc_loss, F.ctc_loss, torch.tensor_split, Tensor.data.__set__})  # type: ignore[attr-defined]
"""Read numbers, or put others into a tensor, where no recorder sees it."""
