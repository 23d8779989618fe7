"""What coordinatewise rules share: the way through blocks of columns, and the order of a column's values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fedlightning.channel.base import Rows


def by_columns(rows: Rows, rule: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply a coordinatewise rule to the rows, a block of columns at a time.

    Args:
        rows: The rows.
        rule: Maps a block ``[S, c]`` to its aggregate ``[c]``.

    Returns:
        The aggregate ``[n]``, in the dtype of the rows.
    """
    return torch.cat([rule(block).to(block.dtype) for block in rows.blocks()])


def double(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on the CPU if its device is MPS, which has none."""
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


def ascending(block: Tensor) -> Tensor:
    """Return a copy of a block ``[S, c]`` with every column sorted; 16-bit numbers become float32."""
    wide = block.float() if block.dtype.itemsize < 4 else block
    if wide.device.type != "cpu":
        return wide.sort(dim=0).values
    return torch.from_numpy(np.sort(wide.numpy(), axis=0))  # about ten times as fast as torch's on a CPU
