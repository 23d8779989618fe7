"""Base of splitting methods: every client solves a subproblem, f_i plus a quadratic term, as far as needed.

How far is up to two exchangeable parts of :mod:`fedlightning.local`: a solver (minibatch steps, gradient descent, SVRG)
and a stopping rule. Subproblems start where the client stood (FedSplit's at its message), so that exact solutions are
fixed points however few steps the solver takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Phase
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.core.validation import require_instance
from fedlightning.local.solvers import LocalSolver, LocalSteps, Solution
from fedlightning.local.stopping import FixedSteps, StoppingRule
from fedlightning.local.subproblem import Subproblem
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.proximal.composite import Composite

SplittingT = TypeVar("SplittingT", bound="SplittingAlgorithm")


@dataclass(frozen=True, eq=False)
class SplittingAlgorithm(Algorithm):
    """Serves as the base class of algorithms with a local subproblem.

    Args:
        solver: Solves the subproblems; null for the K minibatch steps the data module gives, with a step size of
            1 / (weight + L_i), L_i estimated in every round.
        stop: When a client is done before its steps are used up; null for the method's own rule, here never.
    """

    primal: ClassVar[bool] = False

    solver: LocalSolver = field(default_factory=LocalSteps, kw_only=True)
    stop: StoppingRule | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        owner = type(self).__name__
        require_instance(f"{owner}(solver", self.solver, LocalSolver, "LocalSteps(lr=0.1)")
        if self.stop is not None:
            require_instance(f"{owner}(stop", self.stop, StoppingRule, "GradientTolerance(eps=0.01)")

    @property
    def own_rule(self) -> StoppingRule:
        """Return the method's own stopping rule."""
        return FixedSteps()

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return one exchange, with the data that the solver needs."""
        return (
            Phase(
                self.broadcast, self.client_update, self.server_update, data=self.solver.data, steps=self.solver.steps
            ),
        )

    def bind(self: SplittingT, space: ParameterSpace, like: Tensor, regularizer: Composite | None = None) -> SplittingT:
        """Return a bound copy whose solver is bound, too."""
        bound = super().bind(space, like, regularizer)
        object.__setattr__(bound, "solver", bound.solver.bind(space, like))
        return bound

    def solve(self, start: Tensor, oracle: GradientOracle, problem: Subproblem) -> Solution:
        """Return the clients' approximate solutions from ``start``, ``[d]`` or ``[S, d]``."""
        return self.solver.solve(start, oracle, problem, self.own_rule if self.stop is None else self.stop)
