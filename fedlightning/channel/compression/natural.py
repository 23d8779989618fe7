"""Powers of two (Horváth, Ho, Horváth, Sahu, Canini, Richtárik: Natural compression, MSML 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

import torch
from torch import Tensor

from fedlightning.channel.compression.codes import number_bits
from fedlightning.channel.compression.compressor import Compressed, Compressor
from fedlightning.channel.compression.draws import Draws


@dataclass(frozen=True)
class NaturalCompression(Compressor):
    """Rounds every entry to one of the two powers of two around it, at random and without bias.

    For 2^a <= |x| < 2^(a + 1), the upper one is taken with probability |x| / 2^a - 1. Unbiased with ω = 1/8. Numbers
    below the least normal one of the dtype are rounded to that or to zero. One above the largest power of two (1.7e38
    in 32 bits) may become infinite; the client is then left out of the round, as any other that has diverged.

    On the wire: the sign and the exponent of every entry, 9 bits in place of 32, 12 in place of 64.
    """

    def compress(self, values: Tensor, draws: Draws) -> Compressed:
        """Round to powers of two; see :meth:`Compressor.compress`."""
        length = values.shape[1]
        wide = values.to(torch.promote_types(values.dtype, torch.float32))
        least = torch.finfo(values.dtype).tiny
        size = wide.abs()
        normal = size >= least
        lower = torch.where(normal, size / (2 * torch.frexp(size).mantissa), 0.0)  # exact
        upper = torch.where(normal, 2 * lower, least)
        rises = draws.uniform(length, wide.dtype) < torch.where(normal, size / lower - 1, size / least)
        rounded = torch.copysign(torch.where(rises, upper, lower), wide).to(values.dtype)
        bits = length * _bits_of_sign_and_exponent(values.dtype)
        return Compressed.alike(rounded, bits)

    def variance(self, length: int) -> float:
        """Return ω = 1/8; see :meth:`Compressor.variance`."""
        return 0.125


def _bits_of_sign_and_exponent(dtype: torch.dtype) -> int:
    """Return the bits of a number without its mantissa."""
    return number_bits(dtype) - round(-log2(torch.finfo(dtype).eps))
