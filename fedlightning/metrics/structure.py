"""Measures of the structure that regularisers bring about: share of non-zeros, rank of a matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlightning.core.precision import at_least_float32

TOLERANCE = 1e-5
"""Numbers of smaller absolute value count as zero (Bai and Bullins, FeDualEx, 2024, Section 6)."""


def share_of_nonzeros(z: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    """Return the share of elements with |z| > tolerance, a scalar in [0, 1].

    Example:
        >>> share_of_nonzeros(torch.tensor([0.0, 1e-7, 0.2, -3.0]))
        tensor(0.5000)
    """
    return (z.abs() > tolerance).to(torch.get_default_dtype()).mean()


def numerical_rank(z: Tensor, tolerance: float = TOLERANCE) -> Tensor:
    """Return the number of singular values > tolerance of a matrix ``[m, n]``, a scalar.

    Example:
        >>> numerical_rank(torch.ones(3, 4))
        tensor(1)
    """
    singular: Tensor = torch.linalg.svdvals(at_least_float32(z))
    return (singular > tolerance).sum()
