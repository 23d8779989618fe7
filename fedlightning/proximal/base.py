"""The base class of regularizers, convex terms that are added to the mean of the clients' objectives.

The package has one convention: it minimises over x and maximises over y

    mean_i f_i(x, y) + ψ₁(x) - ψ₂(y),

and a *regularizer* is one ψ: a convex function with a closed-form proximal operator, a constraint set, or both.
Methods whose papers sum over clients convert inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

Weight = float | Tensor
"""A step size: a number, a 0-dim tensor or, for separable regularizers, a tensor like the point."""


class Regularizer(ABC):
    """Adds a convex ψ on vectors ``[..., n]`` or matrices ``[..., m, n]``; leading dimensions are separate points.

    On a model it applies to every parameter tensor of its block, or under its name prefix, separately: as a vector, or,
    where ``matrices`` holds, as the matrix ``[first dimension, all others]``.
    """

    matrices: ClassVar[bool] = False
    """Whether ψ is a function of matrices."""

    separable: ClassVar[bool] = False
    """Whether ψ is a sum over elements, so that step sizes may differ by element."""

    homogeneous: ClassVar[bool] = False
    """Whether ψ(c z) = c ψ(z) for c >= 0."""

    @abstractmethod
    def value(self, z: Tensor) -> Tensor:
        """Return ψ(z), a scalar summed over leading dimensions; infinity outside the constraint."""

    @abstractmethod
    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Return the minimiser u of t * ψ(u) + 1/2 ||u - z||^2, a new tensor of the shape of ``z``.

        Args:
            z: Point.
            t: Step size >= 0; 0 leaves the projection onto the constraint.
        """

    @abstractmethod
    def subgradient(self, z: Tensor) -> Tensor:
        """Return an element of the subdifferential of ψ inside its constraint, of the shape of ``z``."""

    def project(self, z: Tensor) -> Tensor:
        """Return the nearest point of the constraint, or ``z`` itself if there is no constraint."""
        return self.prox(z, 0.0)

    def start(self, z: Tensor) -> Tensor:
        """Return where methods that step in the dual space may start from ``z``: the projection by default."""
        return self.project(z)

    def to_dual(self, z: Tensor) -> Tensor:
        """Return the dual image of ``z``, the mirror map's gradient there; ``z`` itself by default."""
        return z

    def from_dual(self, dual: Tensor, t: Weight) -> Tensor:
        """Return the point whose dual image, with ψ taken t times, is ``dual``.

        It minimises l(u) + t * ψ(u) - <dual, u>; for the Euclidean mirror map l = 1/2 ||.||^2 this is :meth:`prox`.
        """
        return self.prox(dual, t)

    def __add__(self, other: Regularizer) -> Regularizer:
        """Return the sum if its proximal operator has a closed form; see :class:`fedlightning.proximal.Sum`."""
        from fedlightning.proximal.sums import Sum

        return Sum(self, other)


def infinite_unless(value: Tensor, inside: Tensor) -> Tensor:
    """Return ``value``, or infinity where a constraint is violated."""
    return torch.where(inside, value, torch.inf)


def slack(z: Tensor) -> float:
    """Return the relative violation of a constraint that counts as rounding."""
    return 64 * torch.finfo(z.dtype).eps
