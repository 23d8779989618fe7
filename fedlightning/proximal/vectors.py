"""Regularizers of whole vectors: the l2 ball, the simplex with its Euclidean and its entropy geometry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.core.validation import require
from fedlightning.proximal.base import Regularizer, Weight, infinite_unless, slack

LEAST_SHARE = 1e-3
"""Smallest element of a start in the entropy geometry, as a share of the uniform point's."""


@dataclass(frozen=True)
class L2Ball(Regularizer):
    """Constrains z to ||z||_2 <= radius.

    Args:
        radius: Bound > 0 of the norm.
    """

    radius: float

    def __post_init__(self) -> None:
        require(self, "radius", above=0.0)

    def value(self, z: Tensor) -> Tensor:
        """Return 0 inside the constraint and infinity outside."""
        norm = torch.linalg.vector_norm(z, dim=-1).amax()
        return infinite_unless(torch.zeros_like(norm), norm <= self.radius * (1 + slack(z)))

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Scale ``z`` down to the radius."""
        if not z.shape[-1]:
            return z
        largest = z.abs().amax(-1, keepdim=True).clamp(min=1)  # squares of z could overflow
        scale: Tensor = self.radius / largest / torch.linalg.vector_norm(z / largest, dim=-1, keepdim=True)
        return z * scale.clamp(max=1)

    def subgradient(self, z: Tensor) -> Tensor:
        """Return 0, a subgradient inside the constraint."""
        return torch.zeros_like(z)


@dataclass(frozen=True)
class Simplex(Regularizer):
    """Constrains z to z >= 0 with sum of z = total, with Euclidean geometry.

    Args:
        total: Sum > 0 of the elements.
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        require(self, "total", above=0.0)

    def value(self, z: Tensor) -> Tensor:
        """Return 0 inside the constraint and infinity outside."""
        off = (z.sum(-1) - self.total).abs().amax() + (-z).clamp(min=0).amax()
        return infinite_unless(torch.zeros_like(off), off <= z.shape[-1] * slack(z) * self.total)

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Project ``z`` (Held et al., 1974) by lowering all elements alike and cutting off negative ones."""
        z = z - z.amax(-1, keepdim=True)  # the projection of a shifted point is the same, with all its digits
        ordered = z.sort(dim=-1, descending=True).values
        excess = ordered.cumsum(-1) - self.total
        count = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype, device=z.device)
        support = (ordered * count > excess).sum(-1, keepdim=True).clamp(min=1)  # 0 of a client at NaN
        level = excess.gather(-1, support - 1) / support
        return (z - level).clamp_(min=0)

    def subgradient(self, z: Tensor) -> Tensor:
        """Return 0, a subgradient inside the constraint."""
        return torch.zeros_like(z)


class EntropySimplex(Simplex):
    """Equips the simplex with the mirror map l(z) = sum of z log z: dual methods move by multiplication.

    ``from_dual`` is the softmax; ``prox`` and ``project`` stay Euclidean, so that to methods which take no step in the
    dual space, such as ProjectedGDA, it is :class:`Simplex`. Multiplication never leaves an element that is zero, so
    every element starts with at least :data:`LEAST_SHARE` of total / n.
    """

    def start(self, z: Tensor) -> Tensor:
        """Return the projection, moved off the boundary."""
        inside = self.project(z).clamp(min=LEAST_SHARE * self.total / z.shape[-1])
        return inside * (self.total / inside.sum(-1, keepdim=True))

    def to_dual(self, z: Tensor) -> Tensor:
        """Return log z, up to a constant that the simplex does not see."""
        return z.clamp(min=torch.finfo(z.dtype).tiny).log()

    def from_dual(self, dual: Tensor, t: Weight) -> Tensor:
        """Return total * softmax(dual)."""
        return self.total * dual.softmax(-1)
