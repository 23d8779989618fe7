"""How many bits numbers, subsets and small integers take on the wire."""

from __future__ import annotations

from math import ceil

import torch
from torch import Tensor

SEED_BITS = 64
"""Bits of a seed, from which a receiver draws what the sender has drawn."""


def number_bits(dtype: torch.dtype) -> int:
    """Return the bits of one number as it is, 32 for ``torch.float32``."""
    return torch.finfo(dtype).bits


def share_of(fraction: float, length: int) -> int:
    """Return how many of ``length`` entries a share > 0 is, rounded up: 7 of 100 for 0.07, whose product is above 7."""
    return max(1, ceil(fraction * length * (1 - 1e-12)))


def choice_bits(count: int) -> int:
    """Return the bits that tell ``count`` possibilities apart, ceil(log2 count)."""
    return (count - 1).bit_length()


def subset_bits(size: int, of: int) -> int:
    """Return the bits of a subset whose size both sides know: its indices or a bitmap, whichever is shorter.

    Args:
        size: Number of entries in the subset.
        of: Number of entries in all; a subset of everything takes no bits.
    """
    return 0 if size == of else min(size * choice_bits(of), of)


def gamma_bits(numbers: Tensor) -> Tensor:
    """Return the lengths of the Elias gamma codes of whole numbers n >= 1, 2 floor(log2 n) + 1 bits each.

    The code of n is its binary form after as many zeros as that has digits but one (Elias, 1975).

    Args:
        numbers: Whole numbers, ``[...]`` floating.
    """
    return 2 * (torch.frexp(numbers).exponent - 1) + 1
