"""What needs more than half precision."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(z: Tensor) -> Tensor:
    """``z``, in float32 if it has fewer bits: decompositions know no half precision, and gaps drown in rounding."""
    return z.to(torch.promote_types(z.dtype, torch.float32))
