"""A random projection to few dimensions that is never formed as a matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedlightning.core.errors import InvalidValueError


class CountSketch:
    """Applies a random matrix P ``[k, d]`` with one nonzero entry in each column, without forming it.

    The method is the count sketch of Charikar, Chen and Farach-Colton (2002). Coordinates are dealt at random into k
    groups; within a block, the sizes of groups differ by one at most. For every coordinate of group b, row b of P holds
    a random sign divided by the square root of the group's size. So P P' = I exactly and E[P'P] = k/d I, as for a
    Gaussian matrix with normalised rows. Where groups have equal sizes, the variance of ``|P x|^2`` is at most 2/k of
    the square of its mean, which is the Gaussian's, too. A projection takes one pass over x, memory for 3 d numbers,
    and no transform: a subsampled Hadamard or Fourier matrix would be no better in the mean square, and slower by a
    factor log d.
    """

    def __init__(self, sizes: Sequence[int], rows: Sequence[int], seed: int, like: Tensor) -> None:
        """Draw P; equal arguments give equal matrices.

        Args:
            sizes: Lengths of consecutive blocks of x, d in all; no group mixes blocks.
            rows: Number of groups in each block, k in all; at least one for a block that is not empty, and at most the
                length of the block.
            seed: Seed of the groups and signs.
            like: Gives dtype and device.

        Raises:
            ValueError: If a block has too few or too many groups.
        """
        if any(not min(1, size) <= count <= size for size, count in zip(sizes, rows, strict=True)):
            raise InvalidValueError(
                f"CountSketch(sizes={list(sizes)}, rows={list(rows)}): expected between 1 and all coordinates of every "
                "block."
            )
        generator = torch.Generator().manual_seed(seed)
        blocks = [(size, count) for size, count in zip(sizes, rows, strict=True) if size]
        d, longest = sum(sizes), max(-(-size // count) for size, count in blocks)
        group, members = torch.empty(d, dtype=torch.long), []
        begin = first = 0
        for size, count in blocks:
            dealt = begin + torch.randperm(size, generator=generator)
            group[dealt] = first + torch.arange(size) % count
            padded = torch.full((longest * count,), d)
            padded[:size] = dealt
            members.append(padded.view(longest, count).T)
            begin, first = begin + size, first + count
        signs = torch.randint(2, (d,), generator=generator) * 2.0 - 1
        root = torch.bincount(group).double().sqrt()
        self._group = group.to(like.device)
        self._members = torch.cat(members).to(like.device)
        self._scale = (signs / root[group]).to(like)

    def project(self, x: Tensor) -> Tensor:
        """Return P x, ``[..., d]`` to ``[..., k]``.

        Sums have a fixed order, so that the result is the same bit for bit every time.
        """
        signed = F.pad(x * self._scale, (0, 1))  # the last, a zero, fills up the shorter groups
        picked = signed.index_select(-1, self._members.flatten())
        return picked.view(*x.shape[:-1], *self._members.shape).sum(-1)

    def lift(self, y: Tensor) -> Tensor:
        """Return P' y, ``[..., k]`` to ``[..., d]``, the shortest of all x with P x = y."""
        return y.index_select(-1, self._group) * self._scale
