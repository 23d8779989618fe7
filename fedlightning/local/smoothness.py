"""Estimate of the Lipschitz constant of a client's operator."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

GRID = 4
"""Estimates are rounded up to powers of 2^(1/GRID)."""


def estimate_smoothness(operator: Callable[[Tensor], Tensor], w: Tensor, iterations: int = 10) -> Tensor:
    """Estimate L_i near ``w`` by power iteration on Jacobian-vector products.

    Products are computed by finite differences, (g(w + h v) - g(w)) / h with h about the square root of the rounding
    error, so each product costs one operator. The largest ||J v|| met is a lower bound of ||J||, and close to ||J||
    after some iterations. It is rounded up to a power of 2^(1/4), which adds at most 19 % and makes the value the same
    whichever way operators are computed, though finite differences magnify rounding. All clients start with the same
    direction.

    Args:
        operator: From points ``[S, d]`` to operators ``[S, d]``, on the same data and with the same random numbers at
            every call: :meth:`fedlightning.oracle.GradientOracle.at_reference`.
        w: Points, ``[S, d]``.
        iterations: Number of products.

    Returns:
        The estimates, ``[S, 1]``, positive.
    """
    direction = torch.randn(w.shape[1], dtype=w.dtype, generator=torch.Generator().manual_seed(0)).to(w.device)
    v = (direction / direction.norm()).expand_as(w)
    h = math.sqrt(torch.finfo(w.dtype).eps) * (1 + w.norm(dim=1, keepdim=True))
    at_w = operator(w)
    largest = torch.zeros_like(h)
    for _ in range(iterations):
        product = (operator(w + h * v) - at_w) / h
        length = product.norm(dim=1, keepdim=True)
        largest = torch.maximum(largest, length)
        v = torch.where(length > 0, product / length, v)
    tiny = math.sqrt(torch.finfo(w.dtype).eps)
    return torch.exp2(torch.ceil(GRID * torch.log2(largest.clamp(min=tiny))) / GRID)
