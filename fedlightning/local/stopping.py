"""Rules that stop a client's solver by the squared norm of the subproblem's operator.

A rule sees one number for each client and says which clients are done. Finished clients stay where they are while the
others of their chunk go on. Solvers that see minibatches test the minibatch operator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.schedule import PerRound, constant
from fedlightning.core.validation import require
from fedlightning.local.subproblem import Subproblem

ROUNDING = 4
"""Largest error that counts as rounding, in units of the last place."""


class StoppingRule(ABC):
    """Decides which clients are done."""

    needs_norms: bool = True
    """Whether the rule looks at norms at all."""

    @abstractmethod
    def done(self, problem: Subproblem, squared_norm: Tensor, first: Tensor) -> Tensor:
        """Return which clients may stop.

        Args:
            problem: The clients' subproblems.
            squared_norm: Squared norm of the subproblem's operator at the present points, ``[S]``.
            first: Squared norm of the operator at the points the solver started from, ``[S]``.

        Returns:
            True for clients that may stop, ``[S]`` bool.
        """


@dataclass(frozen=True)
class FixedSteps(StoppingRule):
    """Lets every client take all steps of the solver."""

    needs_norms = False

    def done(self, problem: Subproblem, squared_norm: Tensor, first: Tensor) -> Tensor:
        """Return False for every client."""
        return torch.zeros_like(squared_norm, dtype=torch.bool)


@dataclass(frozen=True)
class GradientTolerance(StoppingRule):
    """Stops a client once ||operator||^2 <= eps (FedPD; FedADMM of Gong et al.).

    Args:
        eps: Tolerance > 0.
    """

    eps: PerRound

    def __post_init__(self) -> None:
        require(self, "eps", above=0.0)

    def done(self, problem: Subproblem, squared_norm: Tensor, first: Tensor) -> Tensor:
        """Compare the squared norm with eps."""
        small: Tensor = squared_norm <= self.eps
        return small


@dataclass(frozen=True)
class DecreasingTolerance(StoppingRule):
    """Stops a client once ||operator||^2 <= eps * nu^turn, which tightens from turn to turn.

    This is the rule of Zhou and Li, with their FedADMM's turns, those in which the client took part. FedADMM of Gong et
    al., FedDR, FedPD and FedSplit count rounds. FIAELT counts neither: give it a schedule of a fixed tolerance,
    ``GradientTolerance(Exponential(eps, gamma=nu))``.

    Args:
        eps: Tolerance > 0 of the first turn.
        nu: Factor 0 < nu < 1 from one turn to the next.
    """

    eps: PerRound
    nu: float = constant("it is the base of a schedule itself", 0.95)

    def __post_init__(self) -> None:
        require(self, "eps", above=0.0)
        require(self, "nu", above=0.0, below=1.0)

    def done(self, problem: Subproblem, squared_norm: Tensor, first: Tensor) -> Tensor:
        """Compare the squared norm with the tolerance of this turn.

        Raises:
            ValueError: If the algorithm counts no turns.
        """
        if problem.turn is None:
            raise InvalidValueError(
                "DecreasingTolerance tightens from turn to turn, but this algorithm counts none, so that the tolerance "
                "would stay at eps. Take a schedule: GradientTolerance(Exponential(eps, gamma=nu)) of "
                "fedlightning.local and fedlightning.schedules."
            )
        tolerance: float | Tensor = self.eps * self.nu**problem.turn
        return squared_norm <= tolerance


@dataclass(frozen=True)
class RelativeDecrease(StoppingRule):
    """Stops a client once the squared distance to the subproblem's solution has fallen to r times its initial value.

    This is FIAELT's criterion. The distance itself cannot be computed, but the subproblem is (weight - L)-strongly
    monotone and (weight + L)-Lipschitz, so the criterion follows from the test
    ||operator||^2 <= r * ((weight - L) / (weight + L))^2 * ||operator at the start||^2. Unlike with a fixed tolerance,
    the number of steps does not grow from round to round. An operator that consists of rounding errors only cannot
    become smaller, so below this floor a client is done as well.

    Args:
        r: Factor 0 < r < 1.
    """

    r: PerRound

    def __post_init__(self) -> None:
        require(self, "r", above=0.0, below=1.0)

    def done(self, problem: Subproblem, squared_norm: Tensor, first: Tensor) -> Tensor:
        """Compare the squared norm with its value at the start.

        Raises:
            ValueError: If the subproblem is not strongly monotone.
        """
        least, most = problem.conditioning(like=squared_norm)
        if bool((least <= 0).any()):
            raise InvalidValueError(
                f"RelativeDecrease needs subproblems whose weight exceeds L_i, but weight - L_i is "
                f"{float(least.min()):g}. Raise the penalty (FIAELT: beta = 5 L), or use GradientTolerance."
            )
        enough = self.r * (least / most).square() * first
        return squared_norm <= torch.maximum(enough, _rounding(problem, most, squared_norm))


def _rounding(problem: Subproblem, steepness: Tensor, like: Tensor) -> Tensor:
    """Estimate the squared norm of rounding errors in a subproblem's operator near the solution; scalar or ``[S]``."""
    terms: Tensor = (steepness * problem.center.norm(dim=-1)).square()
    if problem.dual is not None:
        terms = terms + problem.dual.square().sum(-1)
    error: float = ROUNDING * torch.finfo(like.dtype).eps
    return terms.to(like) * error**2
