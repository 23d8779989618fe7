"""Sums of whole numbers modulo a power of two, as in secure aggregation (Bonawitz et al., CCS 2017).

Every client adds to its whole numbers a mask that looks random to everybody else; the masks of all clients together sum
to zero modulo 2^bits, so the server learns the sum and nothing else. This module has the arithmetic, whose error is the
same with masks and without.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.channel.base import Aggregation, Rows
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require

_REACH, _STEPS = 8, 2  # standard deviations of noise within the range, and steps of the grid in one


@dataclass(frozen=True)
class FixedPoint(Aggregation):
    """Takes the mean by a sum of whole numbers modulo 2^bits, as a server would that sees masked updates only.

    Clients round each entry to the nearest multiple of the grid's step, ``largest`` / M with
    M = floor((2^(bits - 1) - 1) / clients). No sum of so many clients leaves the range, so none wraps around unseen;
    the mean is off by half a step at most. An entry larger than ``largest`` is refused.

    Counts, such as numbers of local steps, and squared norms have ranges of their own: they are added up beside, each
    as it is, and the server receives their mean.

    Weighted by samples, a client multiplies its update by its number of samples over the largest number that a client
    has, and the server divides the sum, and with it the error, by the sum of these shares.

    Noise of clients is rounded with their updates. If its standard deviation is two steps or more, a sum of rounded
    numbers tells nothing that a sum without rounding does not, up to 1e-17; less is refused.

    On the wire: ``bits`` for every entry, also where clients compress before, because a mask covers zeros as well;
    counts in full.

    Args:
        bits: Bits of the sum, 2 to 53.
        largest: Largest magnitude > 0 of an entry of an update, such as the norm of a ``Clip`` before it.
        clients: Largest number of clients >= 1 in a sum.
    """

    bits: int
    largest: float
    clients: int

    def __post_init__(self) -> None:
        require(self, "bits", at_least=2, at_most=53, because="more would not be exact in 64-bit floats")
        require(self, "largest", above=0.0)
        require(self, "clients", at_least=1)
        if self.top < 1:
            raise InvalidValueError(
                f"FixedPoint(bits={self.bits}, clients={self.clients}): expected bits >= "
                f"{self.clients.bit_length() + 1}, so that each of the clients can add 1 to the sum."
            )

    @property
    def is_mean(self) -> bool:
        """Return True: nothing but the grid tells it from a mean."""
        return True

    @property
    def top(self) -> int:
        """Largest whole number that a client sends, M."""
        return ((1 << (self.bits - 1)) - 1) // self.clients

    @property
    def step(self) -> float:
        """Distance between neighbours of the grid, twice the largest error of the mean."""
        return self.largest / self.top

    def lacks_room(self, bound: float, noise: float) -> str | None:
        """Say that noisy entries leave the range, or that the grid shows through; see :meth:`Aggregation.lacks_room`.

        An entry is beyond eight standard deviations with a probability of 1e-15. Sums of rounded Gaussians depend on
        the summands by their sum alone, but for a share of ``exp(-pi^2 (noise / step)^2)``.
        """
        needed = bound + _REACH * noise
        if needed > self.largest:
            return (
                f"FixedPoint(largest={self.largest:g}): updates of norm {bound:.4g} with a client's noise of standard "
                f"deviation {noise:.4g} have entries up to {needed:.4g}. Set largest to {needed * 1.01:.3g} or more."
            )
        if noise < _STEPS * self.step:
            bits = (self.clients * math.ceil(_STEPS * self.largest / noise)).bit_length() + 1
            return (
                f"FixedPoint(bits={self.bits}): a client's noise of standard deviation {noise:.4g} is less than "
                f"{_STEPS} steps of the grid, {self.step:.4g} each, which would show through. Set bits to {bits} or "
                "more, or largest to less."
            )
        return None

    def encode(self, values: Tensor) -> Tensor:
        """Return clients' whole numbers modulo 2^bits, ``[...]`` int64.

        Raises:
            ValueError: If an entry is larger than ``largest``.
        """
        wide = values.double()
        greatest = float(wide.abs().max()) if wide.numel() else 0.0
        if not math.isfinite(greatest):
            raise InvalidValueError(
                f"FixedPoint: an update has an entry of {greatest}, which no whole number stands for. Buffers that are "
                "NaN or infinite at the server stay so: leave them at the clients (buffers='local')."
            )
        if greatest > self.largest:
            raise InvalidValueError(
                f"FixedPoint(largest={self.largest:g}): an update has an entry of magnitude "
                f"{greatest:.3g}, which would make the sum wrap around. Put Clip(norm={self.largest:g}) "
                "before it into Channel(client=[...]), or raise largest; the error grows with it."
            )
        whole = (wide / self.step).round().clamp(-self.top, self.top)
        return whole.long().remainder(1 << self.bits)

    def decode(self, total: Tensor) -> Tensor:
        """Return the sum of clients' values from the sum of their whole numbers modulo 2^bits, ``[...]`` float64."""
        modulus = 1 << self.bits
        residue = total.remainder(modulus)
        return torch.where(residue < modulus // 2, residue, residue - modulus).double() * self.step

    def aggregate(self, rows: Rows) -> Tensor:
        """Return the mean of whole numbers; see :meth:`Aggregation.aggregate`.

        Raises:
            ValueError: If there are more than ``clients`` rows, or an entry is larger than ``largest``.
        """
        if rows.count > self.clients:
            raise InvalidValueError(
                f"FixedPoint(clients={self.clients}): {rows.count} clients answered. Set clients to the largest cohort."
            )
        means = [(self.decode(self.encode(block).sum(0)) / rows.count).to(block.dtype) for block in rows.blocks()]
        return torch.cat(means)

    def wire_bits(self, length: int) -> float:
        """Return the bits of a client's field of ``length`` entries; see :meth:`Aggregation.wire_bits`."""
        return float(self.bits * length)
