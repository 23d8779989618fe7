"""Random entries of every row (Wangni et al., NeurIPS 2018; Stich, Cordonnier, Jaggi, NeurIPS 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.channel.compression.codes import SEED_BITS, number_bits, share_of, subset_bits
from fedlightning.channel.compression.compressor import Compressed, Compressor
from fedlightning.channel.compression.draws import Draws
from fedlightning.core.validation import require


@dataclass(frozen=True)
class RandK(Compressor):
    """Keeps k random entries of every row of n, n / k times as large, and sets all others to zero.

    Unbiased with ω = n / k - 1. Every client draws entries of its own in every round.

    On the wire: k numbers, and a seed of 64 bits from which the receiver draws the indices, or the indices at
    ceil(log2 n) bits, or a bitmap of n bits, whichever is shortest.

    Args:
        fraction: Share of the entries that is kept, 0 < fraction <= 1; k = ceil(fraction * n).
    """

    fraction: float

    def __post_init__(self) -> None:
        require(self, "fraction", above=0.0, at_most=1.0)

    def compress(self, values: Tensor, draws: Draws) -> Compressed:
        """Keep random entries; see :meth:`Compressor.compress`."""
        length = values.shape[1]
        kept = share_of(self.fraction, length)
        bits = kept * number_bits(values.dtype) + min(SEED_BITS, subset_bits(kept, length))
        places = draws.subsets(kept, length)
        drawn = torch.zeros_like(values).scatter(1, places, values.gather(1, places) * (length / kept))
        return Compressed.alike(drawn, bits)

    def variance(self, length: int) -> float:
        """Return ω = n / k - 1; see :meth:`Compressor.variance`."""
        return length / share_of(self.fraction, length) - 1
