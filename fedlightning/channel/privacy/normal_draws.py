"""Normal numbers for noise: from the seed of an exchange, or from the operating system where nobody may guess them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping

import torch
from torch import Tensor

_PARTS = 4
"""How many normal numbers each one that is returned is the scaled sum of, so that its last bits say less."""

AT_ONCE = 2**20
"""How many numbers are drawn at a time, to bound the memory for random bytes."""


def normal_like(like: Mapping[str, Tensor], generator: torch.Generator | None) -> dict[str, Tensor]:
    """Return standard normal numbers for tensors, one tensor after the other.

    Args:
        like: Gives names, shapes and devices. Numbers have the tensors' dtype, but at least 32 bits.
        generator: Gives the numbers, on the device of the tensors; None takes :func:`secure_normal`.
    """
    draws = {}
    for name, value in like.items():
        wide = torch.promote_types(value.dtype, torch.float32)
        if generator is None:
            draws[name] = secure_normal(value.numel()).to(value.device, wide).view_as(value)
        else:
            draws[name] = torch.randn(value.shape, generator=generator, dtype=wide, device=value.device)
    return draws


def secure_normal(count: int) -> Tensor:
    """Return standard normal numbers that nobody can compute anew, ``[count]`` float64.

    Uniform numbers of 53 bits come from the operating system's cryptographic generator (``os.urandom``) and become
    normal ones by Box and Muller's transform. Each number returned is the sum of four such, divided by 2: an attacker
    who looks for numbers that floating point cannot reach would have to find all four (Holohan and Braghin, "Secure
    random sampling in differential privacy", ESORICS 2021). What remains is that sums of floating-point numbers are no
    real numbers: the guarantee holds up to rounding, as for all noise that is not drawn from integers.
    """
    blocks = [_block(min(AT_ONCE, count - start)) for start in range(0, count, AT_ONCE)]
    return torch.cat(blocks) if blocks else torch.empty(0, dtype=torch.float64)


def _block(count: int) -> Tensor:
    """Return as many standard normal numbers, drawn at once."""
    total = torch.zeros(count, dtype=torch.float64)
    for _ in range(_PARTS):
        radius = (-2 * _uniform(count).log()).sqrt()
        total += radius * (2 * math.pi * _uniform(count)).cos()
    return total / math.sqrt(_PARTS)


def _uniform(count: int) -> Tensor:
    """Return uniform numbers strictly between 0 and 1, multiples of 2^-53 moved by half of that."""
    whole = torch.frombuffer(bytearray(os.urandom(8 * count)), dtype=torch.int64)
    return ((whole >> 11 & (2**53 - 1)).double() + 0.5) * 2.0**-53
