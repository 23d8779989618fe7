"""Sums of regularizers whose proximal operator is a composition of theirs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require_instance
from fedlightning.proximal.base import Regularizer, Weight
from fedlightning.proximal.matrices import GroupLasso, Nuclear, SpectralBall
from fedlightning.proximal.separable import L1, Box, LInfBall, SquaredL2
from fedlightning.proximal.vectors import EntropySimplex, L2Ball, Simplex


@dataclass(frozen=True)
class Sum(Regularizer):
    """Adds first + second, where the proximal operator of the sum has a closed form.

    * any separable + :class:`Box` or :class:`LInfBall`: clip the former's (the minimiser of a convex function of one
      variable over an interval is the clipped free minimiser);
    * any + :class:`SquaredL2`: prox of t/(1 + t w) ψ at z/(1 + t w);
    * :class:`Nuclear` + :class:`SpectralBall`: clip the shrunk singular values;
    * :class:`GroupLasso` + :class:`L1`: soft threshold, then shrink the groups (sparse group lasso);
    * any norm + :class:`L2Ball`: scale the former's to the radius. (The subdifferential of a norm does not change along
      a ray, so the scaled point meets the optimality condition.)

    Args:
        first: A regularizer, which may be a sum itself.
        second: Another; the order does not matter: penalties are put first, then constraints, then squares.

    Raises:
        ValueError: If a sum has no closed form here, or no point satisfies all its constraints.
    """

    first: Regularizer
    second: Regularizer

    def __post_init__(self) -> None:
        for name, term in (("first", self.first), ("second", self.second)):
            require_instance(f"Sum({name}", term, Regularizer, "L1(0.01)")
        *inner, last = sorted((*_terms(self.first), *_terms(self.second)), key=_turn)
        object.__setattr__(self, "first", reduce(Sum, inner))
        object.__setattr__(self, "second", last)
        names = " + ".join(type(term).__name__ for term in (*inner, last))
        if not _chains(self.first, self.second):
            raise InvalidValueError(
                f"{names}: this sum has no closed-form proximal operator here. Sums that have one: separable + Box, "
                "anything + SquaredL2, Nuclear + SpectralBall, GroupLasso + L1, L1 or Nuclear or GroupLasso + L2Ball."
            )
        if self.separable:
            nearest = last.project(self.first.project(torch.zeros(1)))  # in both intervals, if they meet
            if not bool(self.value(nearest).isfinite()):
                raise InvalidValueError(
                    f"{self.first} + {last}: no number satisfies both constraints. Let their bounds meet."
                )

    @property
    def matrices(self) -> bool:  # type: ignore[override]
        """Return whether either regularizer is a function of matrices."""
        return self.first.matrices or self.second.matrices

    @property
    def separable(self) -> bool:  # type: ignore[override]
        """Return whether both regularizers are separable."""
        return self.first.separable and self.second.separable

    @property
    def homogeneous(self) -> bool:  # type: ignore[override]
        """Return whether both regularizers are homogeneous."""
        return self.first.homogeneous and self.second.homogeneous

    def value(self, z: Tensor) -> Tensor:
        """Return the sum of both values."""
        return self._value_of(self.first, z) + self._value_of(self.second, z)

    def prox(self, z: Tensor, t: Weight) -> Tensor:
        """Compose the two proximal operators, as the class describes."""
        inner, outer = self.first, self.second
        if isinstance(outer, SquaredL2):
            scale = 1 + t * outer.weight
            return inner.prox(z / scale, t / scale)
        if self._is_ball_of_matrices(outer):
            return outer.prox(inner.prox(z, t).flatten(-2), t).view_as(z)
        return outer.prox(inner.prox(z, t), t)

    def subgradient(self, z: Tensor) -> Tensor:
        """Return the sum of both subgradients."""
        return self.first.subgradient(z) + self.second.subgradient(z)

    def _value_of(self, part: Regularizer, z: Tensor) -> Tensor:
        return part.value(z.flatten(-2) if self._is_ball_of_matrices(part) else z)

    def _is_ball_of_matrices(self, part: Regularizer) -> bool:
        """Return whether ``part`` is an l2 ball beside a function of matrices, bounding the Frobenius norm."""
        return isinstance(part, L2Ball) and self.matrices


def _terms(regularizer: Regularizer) -> tuple[Regularizer, ...]:
    return (*_terms(regularizer.first), *_terms(regularizer.second)) if isinstance(regularizer, Sum) else (regularizer,)


def _turn(regularizer: Regularizer) -> int:
    """Return when the proximal operator is applied in a composition, as a sort key."""
    if isinstance(regularizer, SquaredL2):
        return 3
    if isinstance(regularizer, Box | LInfBall | SpectralBall | L2Ball | Simplex):
        return 2
    return 0 if regularizer.separable else 1


def _chains(inner: Regularizer, outer: Regularizer) -> bool:
    """Return whether prox of the sum is prox of ``outer`` after prox of ``inner`` (scaled for :class:`SquaredL2`)."""
    return (
        (inner.separable and isinstance(outer, Box | LInfBall))
        or (isinstance(outer, SquaredL2) and not isinstance(inner, EntropySimplex))
        or (isinstance(inner, Nuclear) and isinstance(outer, SpectralBall))
        or (isinstance(inner, L1) and inner.radius is None and isinstance(outer, GroupLasso))
        or (inner.homogeneous and isinstance(outer, L2Ball))
    )
