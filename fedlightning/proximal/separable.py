"""Regularizers that are sums over elements: l1, elastic net, squared l2, boxes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require
from fedlightning.proximal.base import Regularizer, Weight, infinite_unless, slack


def soft_threshold(z: Tensor, threshold: Weight) -> Tensor:
    """Move each element towards zero by ``threshold >= 0``."""
    return z.sign() * (z.abs() - threshold).clamp_(min=0)


@dataclass(frozen=True)
class L1(Regularizer):
    """Adds ψ(z) = weight * ||z||_1, optionally within ||z||_inf <= radius (Bai et al., FeDualEx, A.1).

    Example:
        >>> L1(0.1, radius=0.5).prox(torch.tensor([0.05, -0.3, 2.0]), 1.0)
        tensor([ 0.0000, -0.2000,  0.5000])

    Args:
        weight: lambda > 0.
        radius: Bound of the absolute values; null for none.
    """

    separable = True

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
        """Return ψ(z) = weight * ||z||_1, or infinity outside the radius."""
        value = self.weight * z.abs().sum()
        if self.radius is None:
            return value
        return infinite_unless(value, z.abs().amax() <= self.radius * (1 + slack(z)))

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Soft-threshold the elements, then clip them."""
        return z.sign() * (z.abs() - t * self.weight).clamp_(min=0, max=self.radius)

    def subgradient(self, z: Tensor) -> Tensor:
        """Return weight * sign(z)."""
        return self.weight * z.sign()


@dataclass(frozen=True)
class SquaredL2(Regularizer):
    """Adds ψ(z) = weight/2 * ||z||_2^2.

    Args:
        weight: lambda > 0.
    """

    separable = True

    weight: float

    def __post_init__(self) -> None:
        require(self, "weight", above=0.0)

    def value(self, z: Tensor) -> Tensor:
        """Return ψ(z) = weight/2 * ||z||_2^2."""
        return self.weight / 2 * z.square().sum()

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Shrink ``z`` by 1 / (1 + t * weight)."""
        return z / (1 + t * self.weight)

    def subgradient(self, z: Tensor) -> Tensor:
        """Return the gradient, weight * z."""
        return self.weight * z


@dataclass(frozen=True)
class ElasticNet(Regularizer):
    """Adds ψ(z) = l1 * ||z||_1 + l2/2 * ||z||_2^2.

    Args:
        l1: Weight > 0 of the norm.
        l2: Weight > 0 of the square.
    """

    separable = True

    l1: float
    l2: float

    def __post_init__(self) -> None:
        require(self, "l1", "l2", above=0.0)

    def value(self, z: Tensor) -> Tensor:
        """Return ψ(z) = l1 * ||z||_1 + l2/2 * ||z||_2^2."""
        return self.l1 * z.abs().sum() + self.l2 / 2 * z.square().sum()

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Soft-threshold the elements, then shrink them."""
        return soft_threshold(z, t * self.l1) / (1 + t * self.l2)

    def subgradient(self, z: Tensor) -> Tensor:
        """Return l1 * sign(z) + l2 * z."""
        return self.l1 * z.sign() + self.l2 * z


@dataclass(frozen=True)
class Box(Regularizer):
    """Constrains every element to low <= z <= high.

    Args:
        low: Lower bound; null for none.
        high: Upper bound; null for none.
    """

    separable = True

    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.low is None and self.high is None:
            raise InvalidValueError("Box(low=None, high=None): give at least one bound.")
        require(self, "low", "high", optional=True)
        if self.low is not None and self.high is not None and self.low > self.high:
            raise InvalidValueError(f"Box(low={self.low}, high={self.high}): expected low <= high.")

    def value(self, z: Tensor) -> Tensor:
        """Return 0 inside the constraint and infinity outside."""
        outside = (z - z.clamp(self.low, self.high)).abs().amax()
        return infinite_unless(torch.zeros_like(outside), outside <= slack(z) * z.abs().amax())

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Clip the elements to the box."""
        return z.clamp(self.low, self.high)

    def subgradient(self, z: Tensor) -> Tensor:
        """Return 0, a subgradient inside the constraint."""
        return torch.zeros_like(z)


@dataclass(frozen=True)
class LInfBall(Regularizer):
    """Constrains z to ||z||_inf <= radius, a box around zero.

    Args:
        radius: Bound > 0 of the absolute values.
    """

    separable = True

    radius: float

    def __post_init__(self) -> None:
        require(self, "radius", above=0.0)

    def value(self, z: Tensor) -> Tensor:
        """Return 0 inside the constraint and infinity outside."""
        return Box(-self.radius, self.radius).value(z)

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Clip the elements to the box."""
        return z.clamp(-self.radius, self.radius)

    def subgradient(self, z: Tensor) -> Tensor:
        """Return 0, a subgradient inside the constraint."""
        return torch.zeros_like(z)
