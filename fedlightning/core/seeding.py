"""Seeds that are pure functions of their purpose."""

from __future__ import annotations

import torch

_MASK = 2**64 - 1


def derive_seed(*parts: int) -> int:
    """Mix integers into one 63-bit seed: equal parts give equal seeds, any change gives an unrelated seed.

    Every random draw of a run is seeded by (seed, round, phase, client), so no generator state needs saving and a
    resumed run repeats the draws of an uninterrupted one.

    Args:
        parts: The run's seed first, then what narrows the purpose down, e.g. round, phase and client.
    """
    state = 0
    for part in parts:  # mixed by the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)
        x = (state ^ (part & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
        state = x ^ (x >> 31)
    return state >> 1


def seed_device(device: torch.device, seed: int) -> None:
    """Seed the default generators of the CPU and of ``device``, from which dropout and noise draw.

    ``torch.manual_seed`` seeds every kind of device there is, which takes half a millisecond.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
