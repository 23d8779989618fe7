"""Conversion of tensors and numbers that need more than half precision."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(z: Tensor) -> Tensor:
    """Return ``z``, converted to float32 if the dtype has fewer bits.

    Matrix decompositions do not support half precision, and small gaps drown in its rounding errors.
    """
    return z.to(torch.promote_types(z.dtype, torch.float32))


def as_tensor(number: float | Tensor) -> Tensor:
    """Return a number as a tensor of float64, in which counts stay exact; a tensor stays as it is.

    PyTorch's default dtype has 16 bits during the steps of ``precision="16-true"``.
    """
    return number if isinstance(number, Tensor) else torch.scalar_tensor(float(number), dtype=torch.float64)
