"""The operator of one client in operations that can be replayed, without ``vmap``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedlightning.core.errors import UsageError
from fedlightning.oracle.base import Blocks, Evaluation, differentiate
from fedlightning.oracle.lone_layers import LoneLayers
from fedlightning.oracle.objective import Objective


def of_one(objective: Objective, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both") -> Evaluation:
    """Compute the operator of one client, ``[1, d]``.

    Args:
        objective: The objective, which must not read numbers of a tensor outside tensors.
        w: The point, ``[d]``.
        v: The personal block, ``[p]``.
        b: Buffers, ``[b]``.
        data: The client's minibatch.
        blocks: The gradients to compute.

    Raises:
        UsageError: If the objective reads numbers of a tensor, which a replay would take for those of other clients.
    """

    def forward(*arguments: Any) -> Any:
        with _NoReading(), LoneLayers(channels_last=objective.autocast.on_cpu):
            return objective(*arguments)

    return differentiate(objective, forward, w, v, b, data, blocks)


class _NoReading(TorchFunctionMode):
    """Refuses to read numbers outside tensors, which would be those of the recorded client for all."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _READING:
            raise UsageError(f"{func.__name__} reads numbers of a tensor")
        return func(*args, **(kwargs or {}))


_READING = {torch.ctc_loss, F.ctc_loss, torch.tensor_split, Tensor.tensor_split}.union(
    getattr(Tensor, name)
    for name in (
        "__array__",
        "__bool__",
        "__complex__",
        "__contains__",
        "__dlpack__",
        "__float__",
        "__index__",
        "__int__",
        "data_ptr",
        "item",
        "numpy",
        "tolist",
        "untyped_storage",
    )
)
