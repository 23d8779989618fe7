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

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in self._refused:
            self.has_refused = True
            raise UsageError(f"{func.__name__} reads numbers of a tensor")
        return func(*args, **(kwargs or {}))


def _methods(*names: str) -> frozenset[Any]:
    return frozenset(getattr(Tensor, name) for name in names)


SEEN_READS = _methods("__bool__", "__complex__", "__contains__", "__float__", "__index__", "__int__", "item")
"""Read numbers by operations, so that a recorder gives up and every call runs anew."""

HIDDEN_READS = _methods(
    *(
        "__array__",
        "__dlpack__",
        "__format__",
        "__repr__",
        "data_ptr",
        "numpy",
        "set_",
        "tensor_split",
        "tolist",
        "untyped_storage",
    )
).union({torch.ctc_loss, F.ctc_loss, torch.tensor_split, Tensor.data.__set__})  # type: ignore[attr-defined]
"""Read numbers, or put others into a tensor, where no recorder sees it."""
