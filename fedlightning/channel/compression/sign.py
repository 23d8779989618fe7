"""Signs with a scale (Karimireddy, Rebjock, Stich, Jaggi: Error feedback fixes SignSGD, ICML 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.channel.base import Exchange
from fedlightning.channel.compression.codes import number_bits
from fedlightning.channel.compression.compressor import Compressed, Compressor
from fedlightning.channel.compression.draws import Draws


@dataclass(frozen=True)
class SignCompression(Compressor):
    """Sends the sign of every entry, and the mean magnitude of the row.

    C(x) = ‖x‖₁ / n * sign(x), where zero counts as positive. A contraction with α = ‖x‖₁² / (n ‖x‖²), which is near 1
    for entries of about the same size and 1 / n for a single one. By itself it stalls where clients differ; see
    :class:`~fedlightning.channel.ErrorFeedback`.

    On the wire: n bits and one number.
    """

    def compress(self, values: Tensor, draws: Draws) -> Compressed:
        """Send signs; see :meth:`Compressor.compress`."""
        length = values.shape[1]
        scale = values.abs().mean(1, keepdim=True)
        bits = length + number_bits(values.dtype)
        signs = torch.where(values < 0, -scale, scale)
        return Compressed.alike(signs, bits)

    def bound(self, before: float | None, names: Sequence[str], exchange: Exchange) -> float | None:
        """Return the bound before, because no row becomes longer; see :meth:`Transform.bound`."""
        return before
