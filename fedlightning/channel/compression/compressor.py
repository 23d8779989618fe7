"""The contract of a compressor: fewer bits for about the same numbers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlightning.channel.base import Exchange, Fields, Sent, Transform
from fedlightning.channel.compression.codes import number_bits
from fedlightning.channel.compression.draws import Draws


@dataclass(frozen=True)
class Compressed:
    """Holds compressed rows as the receiver reads them, and their lengths on the wire.

    Attributes:
        values: ``[S, n]``, what the receiver computes from the bits.
        bits: Number of bits of each row, ``[S]`` float64 on the CPU.
    """

    values: Tensor
    bits: Tensor

    @classmethod
    def alike(cls, values: Tensor, bits: float) -> Compressed:
        """Return rows that all take the same number of bits."""
        return cls(values, torch.full((len(values),), bits, dtype=torch.float64))


class Compressor(Transform):
    """Replaces every row by one that takes fewer bits; each field of an update is compressed by itself.

    A compressor C is either *unbiased* with a variance ω, E C(x) = x and E ‖C(x) - x‖² <= ω ‖x‖², or a *contraction*,
    E ‖C(x) - x‖² <= (1 - α) ‖x‖² for an α > 0. Divided by 1 + ω, an unbiased one is a contraction with
    α = 1 / (1 + ω), which is how it is used wherever errors are fed back: inside
    :class:`~fedlightning.channel.ErrorFeedback`, and for what the server broadcasts.

    Rows with NaN or infinite numbers stay as they are, so that the server can leave their clients out.
    """

    @abstractmethod
    def compress(self, values: Tensor, draws: Draws) -> Compressed:
        """Return compressed rows.

        Args:
            values: ``[S, n]``, finite; not to be written into.
            draws: Random numbers of the S clients.
        """

    def variance(self, length: int) -> float | None:
        """Return ω for rows of a length, if the compressor is unbiased; None for a contraction."""
        return None

    def contracted(self, values: Tensor, draws: Draws) -> Compressed:
        """Return compressed rows as a contraction, divided by 1 + ω by the receiver if the compressor is unbiased.

        Args:
            values: ``[S, n]``.
            draws: Random numbers of the S clients.
        """
        variance = self.variance(values.shape[1])
        sent = self.checked(values, draws)
        return sent if variance is None else replace(sent, values=sent.values / (1 + variance))

    def checked(self, values: Tensor, draws: Draws) -> Compressed:
        """Return compressed rows, and rows that are not finite as they are.

        Args:
            values: ``[S, n]``.
            draws: Random numbers of the S clients.
        """
        sent = self.compress(values, draws)
        finite = values.isfinite().all(1)
        if bool(finite.all()):
            return sent
        plain = Compressed.alike(values, values.shape[1] * number_bits(values.dtype))
        kept = torch.where(finite[:, None], sent.values, plain.values)
        return Compressed(kept, torch.where(finite.cpu(), sent.bits, plain.bits))

    def apply(self, sent: Sent, memory: Fields, exchange: Exchange, purpose: int) -> tuple[Sent, Fields]:
        """Compress every field; see :meth:`Transform.apply`.

        The server's rows, of an exchange without client ids, are differences from what clients know: errors are fed
        back, so the compressor is used as a contraction.
        """
        draws = Draws.of(sent.values, exchange, purpose)
        compress = self.checked if exchange.client_ids else self.contracted
        return resent(sent, {name: compress(value, draws) for name, value in sent.values.items()}), memory


def resent(sent: Sent, found: Mapping[str, Compressed]) -> Sent:
    """Return what is sent with every field replaced by its compressed form."""
    return replace(
        sent,
        values={name: each.values for name, each in found.items()},
        bits={name: each.bits for name, each in found.items()},
    )
