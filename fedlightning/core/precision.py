"""Conversion of tensors that need more than half precision."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(z: Tensor) -> Tensor:
    """Return ``z``, converted to float32 if the dtype has fewer bits.

    Matrix decompositions do not support half precision, and small gaps drown in its rounding errors.
    """
    return z.to(torch.promote_types(z.dtype, torch.float32))
