"""Random rounding to a few levels (Alistarh, Grubic, Li, Tomioka, Vojnovic: QSGD, NeurIPS 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor
from torch.nn.functional import pad

from fedlightning.channel.compression.codes import choice_bits, gamma_bits, number_bits
from fedlightning.channel.compression.compressor import Compressed, Compressor
from fedlightning.channel.compression.draws import Draws
from fedlightning.core.validation import require


@dataclass(frozen=True)
class QSGD(Compressor):
    """Rounds every entry to a multiple of ‖x‖ / s, at random and without bias, for s levels and the row's norm ‖x‖.

    With ``bucket_size`` B, every B consecutive entries have a norm of their own, as in the paper's section 4. Unbiased
    with ω = min(m / s², √m / s) for m = min(n, B): a row much longer than s² needs buckets or more levels.

    On the wire: the norms; one bit that says which of two codes follows; and the whole numbers between -s and s, either
    at ceil(log2(2 s + 1)) bits each, or the magnitude plus 1 in Elias' gamma code and a sign unless it is zero,
    whichever is shorter.

    Args:
        levels: Number of levels s >= 1 above zero.
        bucket_size: Number of entries B >= 1 that share a norm; null for all of a row.
    """

    levels: int
    bucket_size: int | None = None

    def __post_init__(self) -> None:
        require(self, "levels", at_least=1)
        require(self, "bucket_size", at_least=1, optional=True)

    def compress(self, values: Tensor, draws: Draws) -> Compressed:
        """Round to multiples of the norm; see :meth:`Compressor.compress`."""
        rows, length = values.shape
        wide = values.to(torch.promote_types(values.dtype, torch.float32))
        size = self._bucket(length)
        buckets = pad(wide, (0, -length % size)).view(rows, -1, size)
        largest = buckets.abs().amax(2, keepdim=True)
        shares = buckets.abs() / torch.where(largest > 0, largest, 1.0)  # whose squares are of moderate size
        norm = shares.norm(dim=2, keepdim=True)
        exact = (shares / torch.where(largest > 0, norm, 1.0) * self.levels).view(rows, -1)[:, :length]
        levels = (exact + draws.uniform(length, wide.dtype)).floor().clamp_max(self.levels)
        unit = (largest * norm / self.levels).expand_as(buckets).reshape(rows, -1)[:, :length]
        rounded = torch.copysign(levels * unit, wide).to(values.dtype)
        bits = norm.shape[1] * number_bits(values.dtype) + 1 + self._code_bits(levels)
        return Compressed(rounded, bits)

    def variance(self, length: int) -> float:
        """Return ω = min(m / s², √m / s); see :meth:`Compressor.variance`."""
        size = self._bucket(length)
        return min(size / self.levels**2, sqrt(size) / self.levels)

    def _bucket(self, length: int) -> int:
        """Return how many entries of a row share a norm."""
        return length if self.bucket_size is None else min(self.bucket_size, length)

    def _code_bits(self, levels: Tensor) -> Tensor:
        """Return the bits of the whole numbers of every row, ``[S]`` float64."""
        fixed = levels.shape[1] * choice_bits(2 * self.levels + 1)
        gamma = (gamma_bits(levels + 1) + (levels > 0)).sum(1)
        return gamma.clamp_max(fixed).cpu().double()
