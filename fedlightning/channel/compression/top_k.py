"""The largest entries of every row (Stich, Cordonnier, Jaggi: Sparsified SGD with memory, NeurIPS 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.channel.base import Exchange
from fedlightning.channel.compression.codes import number_bits, share_of, subset_bits
from fedlightning.channel.compression.compressor import Compressed, Compressor
from fedlightning.channel.compression.draws import Draws
from fedlightning.core.validation import require


@dataclass(frozen=True)
class TopK(Compressor):
    """Keeps the k entries of largest magnitude in every row of n, and sets all others to zero.

    A contraction with α = k / n. By itself it stalls where clients differ; see
    :class:`~fedlightning.channel.ErrorFeedback`. Of entries of the same magnitude, the first are kept.

    On the wire: k numbers, and their indices at ceil(log2 n) bits or a bitmap of n bits, whichever is shorter.

    Args:
        fraction: Share of the entries that is kept, 0 < fraction <= 1; k = ceil(fraction * n).
    """

    fraction: float

    def __post_init__(self) -> None:
        require(self, "fraction", above=0.0, at_most=1.0)

    def compress(self, values: Tensor, draws: Draws) -> Compressed:
        """Keep the largest entries; see :meth:`Compressor.compress`."""
        length = values.shape[1]
        kept = share_of(self.fraction, length)
        bits = kept * number_bits(values.dtype) + subset_bits(kept, length)
        largest = torch.where(_largest(values.abs(), kept), values, 0.0)
        return Compressed.alike(largest, bits)

    def bound(self, before: float | None, names: Sequence[str], exchange: Exchange) -> float | None:
        """Return the bound before, because no row becomes longer; see :meth:`Transform.bound`."""
        return before


def _largest(magnitudes: Tensor, count: int) -> Tensor:
    """Return which entries are the largest of their rows, ``[S, n]`` bool with at most ``count`` of each row.

    What ``topk`` takes of equal entries depends on the device and on the number of rows, so it only finds the least of
    the largest.
    """
    least = magnitudes.topk(count, sorted=False).values.amin(1, keepdim=True)
    chosen = (magnitudes >= least) & (magnitudes > 0)
    crowded = chosen.sum(1) > count
    if bool(crowded.any()):
        above, equal = (magnitudes > least)[crowded], (magnitudes == least)[crowded]
        room = count - above.sum(1, keepdim=True)
        chosen[crowded] = above | (equal & (equal.cumsum(1) <= room))
    return chosen
