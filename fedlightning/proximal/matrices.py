"""Regularizers of matrices: nuclear norm, spectral ball, groups of rows or columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.precision import at_least_float32
from fedlightning.core.validation import require
from fedlightning.proximal.base import Regularizer, Weight, infinite_unless, slack


@dataclass(frozen=True)
class Nuclear(Regularizer):
    """Adds ψ(Z) = weight * ||Z||_*, the sum of singular values, optionally within ||Z||_2 <= radius (FeDualEx, A.2).

    Args:
        weight: lambda > 0.
        radius: Bound of the largest singular value; null for none.
    """

    matrices = True

    weight: float
    radius: float | None = None

    def __post_init__(self) -> None:
        require(self, "weight", above=0.0)
        require(self, "radius", above=0.0, optional=True)

    @property
    def homogeneous(self) -> bool:  # type: ignore[override]
        """Return True if there is no radius."""
        return self.radius is None

    def value(self, z: Tensor) -> Tensor:
        """Return ψ(Z) = weight * ||Z||_*, or infinity outside the radius."""
        singular = torch.linalg.svdvals(at_least_float32(z))
        value: Tensor = self.weight * singular.sum()
        if self.radius is None:
            return value
        return infinite_unless(value, singular.amax() <= self.radius * (1 + slack(z)))

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Soft-threshold the singular values, then clip them."""
        u, singular, vh = _svd(z)
        return _matrix(u, (singular - t * self.weight).clamp_(min=0, max=self.radius), vh)

    def subgradient(self, z: Tensor) -> Tensor:
        """Return weight * U V' over the singular values that are not zero."""
        u, singular, vh = _svd(z)
        present = (singular > slack(z) * singular.amax(-1, keepdim=True)).to(z.dtype)
        return _matrix(u, self.weight * present, vh)


@dataclass(frozen=True)
class SpectralBall(Regularizer):
    """Constrains the largest singular value to ||Z||_2 <= radius.

    Args:
        radius: Bound > 0.
    """

    matrices = True

    radius: float

    def __post_init__(self) -> None:
        require(self, "radius", above=0.0)

    def value(self, z: Tensor) -> Tensor:
        """Return 0 inside the constraint and infinity outside."""
        largest = torch.linalg.matrix_norm(at_least_float32(z), 2).amax()
        return infinite_unless(torch.zeros_like(largest), largest <= self.radius * (1 + slack(z)))

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Clip the singular values."""
        u, singular, vh = _svd(z)
        return _matrix(u, singular.clamp_(max=self.radius), vh)

    def subgradient(self, z: Tensor) -> Tensor:
        """Return 0, a subgradient inside the constraint."""
        return torch.zeros_like(z)


@dataclass(frozen=True)
class GroupLasso(Regularizer):
    """Adds ψ(Z) = weight * sum of the l2 norms of rows (or columns), so that whole neurons leave a layer.

    Args:
        weight: lambda > 0.
        groups: What a group is: ``rows`` (a layer's outputs) or ``columns`` (its inputs).
    """

    matrices = True
    homogeneous = True

    weight: float
    groups: Literal["rows", "columns"] = "rows"

    def __post_init__(self) -> None:
        require(self, "weight", above=0.0)
        if self.groups not in ("rows", "columns"):
            raise InvalidValueError(f"GroupLasso(groups={self.groups!r}): expected 'rows' or 'columns'.")

    def value(self, z: Tensor) -> Tensor:
        """Return ψ(Z) = weight * sum of group norms."""
        return self.weight * self._norms(z).sum()

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Shrink every group's norm by t * weight, down to zero."""
        norms = self._norms(z)
        scale: Tensor = (norms - t * self.weight).clamp(min=0) / norms.clamp(min=torch.finfo(z.dtype).tiny)
        return z * scale

    def subgradient(self, z: Tensor) -> Tensor:
        """Return weight * unit vectors of the groups that are not zero."""
        return self.weight * z / self._norms(z).clamp(min=torch.finfo(z.dtype).tiny)

    def _norms(self, z: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(z, dim=-1 if self.groups == "rows" else -2, keepdim=True)
        return norms


def _svd(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    u, singular, vh = torch.linalg.svd(at_least_float32(z), full_matrices=False)
    return u.to(z.dtype), singular.to(z.dtype), vh.to(z.dtype)


def _matrix(u: Tensor, singular: Tensor, vh: Tensor) -> Tensor:
    return u * singular.unsqueeze(-2) @ vh
