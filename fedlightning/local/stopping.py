"""When a client's solver has done enough: rules on the squared norm of its subproblem's operator.

A rule sees one number a client and says who is done; finished clients stand still while the others of their chunk go
on. Solvers that see minibatches test the minibatch operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.core.validation import require
from fedlightning.local.subproblem import Subproblem

ROUNDING = 4
"""Errors in units of the last place that count as rounding."""


class StoppingRule(ABC):
    """Says which clients are done."""

    needs_norms: bool = True
    """Whether the rule looks at norms at all."""

    @abstractmethod
    def done(self, problem: Subproblem, squared_norm: Tensor, first: Tensor) -> Tensor:
        """Who may stop.

        Args:
            problem: What is solved.
            squared_norm: ``[S]``, squared norm of the subproblem's operator at the present points.
            first: ``[S]``, the same at the points the solver started from.

        Returns:
            ``[S]`` bool.
        """


@dataclass(frozen=True)
class FixedSteps(StoppingRule):
    """As many steps as the solver has."""

    needs_norms = False

    def done(self, problem: Subproblem, squared_norm: Tensor, first: Tensor) -> Tensor:
        """Nobody stops early."""
        return torch.zeros_like(squared_norm, dtype=torch.bool)


@dataclass(frozen=True)
class GradientTolerance(StoppingRule):
    """||operator||^2 <= eps (FedPD; FedADMM of Gong et al.).

    Args:
        eps: Tolerance > 0.
    """

    eps: float

    def __post_init__(self) -> None:
        require(self, "eps", above=0.0)

    def done(self, problem: Subproblem, squared_norm: Tensor, first: Tensor) -> Tensor:
        """Compare with eps."""
        return squared_norm <= self.eps


@dataclass(frozen=True)
class DecreasingTolerance(StoppingRule):
    """||operator||^2 <= eps * nu^turn: tighter whenever the client solves its problem again (Zhou and Li).

    Args:
        eps: First tolerance > 0.
        nu: Factor 0 < nu < 1.
    """

    eps: float
    nu: float = 0.95

    def __post_init__(self) -> None:
        require(self, "eps", above=0.0)
        require(self, "nu", above=0.0, below=1.0)

    def done(self, problem: Subproblem, squared_norm: Tensor, first: Tensor) -> Tensor:
        """Compare with the tolerance of this turn."""
        tolerance: float | Tensor = self.eps * self.nu**problem.turn
        return squared_norm <= tolerance


@dataclass(frozen=True)
class RelativeDecrease(StoppingRule):
    """FIAELT's criterion: the squared distance to the subproblem's solution has fallen to r times that of the start.

    The distance cannot be computed. The subproblem is (weight - L)-strongly monotone and (weight + L)-Lipschitz, so
    ||operator||^2 <= r * ((weight - L) / (weight + L))^2 * ||operator at the start||^2 implies it; that is the test.
    The number of steps it takes does not grow from round to round, unlike that to a fixed tolerance. Once rounding is
    all that is left of the operator nothing can make it smaller: below that floor a client is done as well.

    Args:
        r: Factor 0 < r < 1.
    """

    r: float

    def __post_init__(self) -> None:
        require(self, "r", above=0.0, below=1.0)

    def done(self, problem: Subproblem, squared_norm: Tensor, first: Tensor) -> Tensor:
        """Compare with the start.

        Raises:
            ValueError: If the subproblem is not strongly monotone.
        """
        least, most = problem.conditioning(like=squared_norm)
        if bool((least <= 0).any()):
            raise ValueError(
                f"RelativeDecrease needs subproblems whose weight exceeds L_i, but weight - L_i is "
                f"{float(least.min()):g}. Raise the penalty (FIAELT: beta = 5 L), or use GradientTolerance."
            )
        enough = self.r * (least / most).square() * first
        return squared_norm <= torch.maximum(enough, _rounding(problem, most, squared_norm))


def _rounding(problem: Subproblem, steepness: Tensor, like: Tensor) -> Tensor:
    """Squared norm of the rounding errors in a subproblem's operator near its solution, roughly; scalar or ``[S]``."""
    terms: Tensor = (steepness * problem.center.norm(dim=-1)).square()
    if problem.dual is not None:
        terms = terms + problem.dual.square().sum(-1)
    error: float = ROUNDING * torch.finfo(like.dtype).eps
    return terms.to(like) * error**2
