"""Solvers of the clients' subproblems, on the matrix ``[S, d]`` of a whole chunk of clients.

Each solver starts at a given point, goes on until its steps are used up or the stopping rule is met, and counts the
steps of every client. All solvers work on operators, so a subproblem with a max block is solved for its saddle point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.parameter_space import ParameterSpace, PerBlock
from fedlightning.core.schedule import PerRound
from fedlightning.core.validation import require, require_step_size
from fedlightning.local.clipping import ByValue, require_clip
from fedlightning.local.descent import bound_optimizer, clipped_step, gradient_step, steps_of
from fedlightning.local.optimizers import LocalOptimizer
from fedlightning.local.smoothness import estimate_smoothness
from fedlightning.local.stopping import StoppingRule
from fedlightning.local.subproblem import Subproblem
from fedlightning.local.torch_optimizers import OptimizerCallable, Step

if TYPE_CHECKING:
    from fedlightning.oracle.gradient import GradientOracle

SolverT = TypeVar("SolverT", bound="LocalSolver")


@dataclass(frozen=True)
class Solution:
    """Holds what a solver returns.

    Attributes:
        w: The clients' points, ``[S, d]``.
        steps: Number of inner steps that each client took, ``[S]``.
        solved: 1 where the stopping rule was seen to be met, 0 where the steps ran out before, ``[S]``; None if the
            rule is to take all steps. The point after the last step is not tested.
        personal: The clients' personal blocks, ``[S, p]``; None if there are none.
    """

    w: Tensor
    steps: Tensor
    solved: Tensor | None = None
    personal: Tensor | None = None

    @property
    def log(self) -> dict[str, Tensor]:
        """Return the values that an algorithm logs of a solution, ``[S]`` each."""
        return {"inner_steps": self.steps} | ({} if self.solved is None else {"solved": self.solved})


class LocalSolver(ABC):
    """Solves subproblems; subclasses are frozen dataclasses with a step size ``lr``.

    Attributes:
        data: What the solver needs of a client's data, in the words of :class:`fedlightning.algorithms.Phase`.
        lr: Step size of the shared block; None if the solver estimates a suitable one.
        minimax: Whether there is a max block; set by :meth:`bind`.
        personal_lr: Step size of the personal block; set by :meth:`bind` from ``lr``.
    """

    data: ClassVar[Literal["minibatches", "full", "both"]] = "minibatches"
    lr: PerBlock | None
    minimax: bool = False
    personal_lr: float | Tensor = 0.0

    @property
    def steps(self) -> int | None:
        """Return the number of minibatches needed in a round; None for as many as the data module gives."""
        return None

    @abstractmethod
    def solve(self, w: Tensor, oracle: GradientOracle, problem: Subproblem, stop: StoppingRule) -> Solution:
        """Solve the subproblems of S clients.

        Args:
            w: Where to start, ``[d]`` or ``[S, d]``.
            oracle: Operators and minibatches of the clients.
            problem: The clients' subproblems.
            stop: Decides when a client is done.
        """

    def bind(self: SolverT, space: ParameterSpace, like: Tensor) -> SolverT:
        """Return a copy that knows the blocks; see :meth:`fedlightning.algorithms.Algorithm.bind`.

        Raises:
            ValueError: If ``lr`` is None although the task has personal parameters, or does not suit the parameters.
        """
        if self.lr is None and space.personal.dim:
            raise InvalidValueError(
                f"{type(self).__name__}(lr=null): step sizes are estimated for shared parameters only, but the task "
                "has personal_parameters. Give lr: one number, or by name prefix."
            )
        bound = copy(self)
        object.__setattr__(bound, "minimax", space.shared.min_dim < space.shared.dim)
        if self.lr is not None:
            shared, personal = space.spread(self.lr, "lr", like)
            object.__setattr__(bound, "lr", shared)
            object.__setattr__(bound, "personal_lr", personal)
        return bound

    def step_personal(self, v: Tensor | None, g: Tensor, active: Tensor) -> Tensor | None:
        """Take a plain step of the personal blocks ``v [S, p]`` along ``g [S, p]``, for clients ``active [S]`` only."""
        return None if v is None else torch.where(active[:, None], v - self.personal_lr * g, v)

    def step_size(self, problem: Subproblem, operator: Callable[[Tensor], Tensor], w: Tensor) -> float | Tensor:
        """Return ``lr`` or, if None, 1 / (weight + L_i), which suits the subproblem's operator.

        An unknown L_i is estimated. A strongly monotone operator that is no gradient allows steps of at most
        2 * weight / (weight + L_i)^2, so with a max block the step is no longer than weight / (weight^2 + L_i^2).
        """
        if self.lr is not None:
            return self.lr  # type: ignore[no-any-return]
        weight = problem.weight
        known = problem.smoothness
        smoothness: Any = estimate_smoothness(operator, w) if known is None else known
        step: Any = 1 / (weight + smoothness)
        if not self.minimax:
            return step  # type: ignore[no-any-return]
        safe: Any = weight / (weight * weight + smoothness * smoothness)
        return min(step, safe) if isinstance(step, float) else torch.minimum(step, safe)


@dataclass(frozen=True, eq=False)
class LocalSteps(LocalSolver):
    """Takes the K minibatch steps of the data module, by plain gradient steps or any elementwise torch optimizer.

    Stopping rules test the minibatch operator: exact with ``batch_size: null``.

    Args:
        lr: Step size > 0: one number, ``[min, max]`` or by name prefix. Null: 1 / (weight + L_i), with L_i estimated on
            a minibatch in every round unless the algorithm knows it, which costs eleven more operators.
        optimizer: What makes an elementwise torch optimizer, or a :class:`LocalOptimizer`; fresh in every round, with
            the learning rate ``lr``. Null for plain steps.
        clip: Largest norm > 0 of one client's minibatch gradient, shared and personal block together, before the
            subproblem's terms are added, or :class:`ByValue`; null for no clipping.
    """

    lr: PerBlock | None = None
    optimizer: OptimizerCallable | LocalOptimizer | None = None
    clip: PerRound | ByValue | None = None

    def __post_init__(self) -> None:
        require_step_size(self, "lr", optional=True)
        require_clip(self, "clip")

    def bind(self, space: ParameterSpace, like: Tensor) -> LocalSteps:
        """Try out the optimizer, and return a bound copy; see :meth:`LocalSolver.bind`.

        Raises:
            ValueError: If the optimizer is not elementwise, or for the reasons of :meth:`LocalSolver.bind`.
        """
        bound = super().bind(space, like)
        optimizer = bound_optimizer(self.optimizer, space, like, "LocalSteps: optimizer")
        object.__setattr__(bound, "optimizer", optimizer)
        return bound

    def solve(self, w: Tensor, oracle: GradientOracle, problem: Subproblem, stop: StoppingRule) -> Solution:
        """Take steps on minibatches, in the personal block on the same minibatches."""
        w = w.expand(oracle.num_clients, -1).clone()
        first_batch = next(oracle.batches())
        lr = self.step_size(problem, lambda point: oracle.at_reference(point, first_batch), w)
        step, personal_step = steps_of(self.optimizer, w, lr, self.personal_lr)
        run = _Run(w, stop, problem, step, oracle.personal)
        for batch in oracle.batches():
            batch = oracle.for_those(run.going, batch)
            g, v = clipped_step(oracle, run.w, run.v, batch, self.personal_lr, self.clip, personal_step)
            is_last = not run.step(problem.operator(run.w, g), batch.active)
            run.keep_personal(v)
            if is_last:
                break
        return run.solution


@dataclass(frozen=True, eq=False)
class GradientDescent(LocalSolver):
    """Takes gradient steps on all of a client's data; a personal block takes plain steps beside the shared block.

    Args:
        lr: Step size > 0: one number, ``[min, max]`` or by name prefix. Null: 1 / (weight + L_i), with L_i estimated in
            every round unless the algorithm knows it, which costs eleven more operators.
        max_steps: Largest number of steps, at least 1.
    """

    data = "full"
    lr: PerBlock | None = None
    max_steps: int = 100

    def __post_init__(self) -> None:
        require_step_size(self, "lr", optional=True)
        require(self, "max_steps", at_least=1)

    def solve(self, w: Tensor, oracle: GradientOracle, problem: Subproblem, stop: StoppingRule) -> Solution:
        """Take full gradient steps."""
        w = w.expand(oracle.num_clients, -1).clone()
        step = gradient_step(self.step_size(problem, oracle.at_reference, w))
        run = _Run(w, stop, problem, step, oracle.personal)
        for _ in range(self.max_steps):
            active = None if bool(run.going.all()) else run.going
            g, g_v = oracle.full_blocks(run.w, run.v, active=run.going)
            if not run.step(problem.operator(run.w, g), active):
                break
            run.v = self.step_personal(run.v, g_v, run.going)
        return run.solution


@dataclass(frozen=True, eq=False)
class SVRG(LocalSolver):
    """Solves subproblems by stochastic variance reduced gradients, Option II (Johnson and Zhang, NeurIPS 2013).

    An epoch computes the full operator at a snapshot, then takes m minibatch steps from there with the operator
    g_B(w) - g_B(snapshot) + g(snapshot). One of the first m points, drawn uniformly, is the next snapshot and, in the
    end, the result. Steps beyond the drawn point are of no use, so a client goes no further: it takes m / 2 steps on
    average, and these are counted. Stopping rules test the full operator at every snapshot. A personal block stays
    fixed during an epoch and takes one plain step along its full gradient afterwards.

    Args:
        lr: Step size > 0: one number, ``[min, max]`` or by name prefix. Null: 0.15 / (weight + L_i), which is the
            1 / (40 L) of FIAELT's Corollary 2 where weight = 5 L_i; an unknown L_i is estimated in every round.
        inner_steps: Number m of steps in an epoch, at least 1.
        epochs: Largest number of epochs, at least 1. The data module gives epochs * m minibatches, whatever its
            ``local_steps``.
    """

    data = "both"
    lr: PerBlock | None = None
    inner_steps: int = 200
    epochs: int = 10

    def __post_init__(self) -> None:
        require_step_size(self, "lr", optional=True)
        require(self, "inner_steps", "epochs", at_least=1)

    @property
    def steps(self) -> int:
        """Return the number of minibatches in a round, one for each inner step."""
        return self.inner_steps * self.epochs

    def step_size(self, problem: Subproblem, operator: Callable[[Tensor], Tensor], w: Tensor) -> float | Tensor:
        """Return ``lr`` or, if None, a shorter step than gradient descent's, because the operators are noisy."""
        step = super().step_size(problem, operator, w)
        return step if self.lr is not None else 0.15 * step

    def solve(self, w: Tensor, oracle: GradientOracle, problem: Subproblem, stop: StoppingRule) -> Solution:
        """Run epochs until all clients are done; every client draws its points from its own seed."""
        snapshot = w.expand(oracle.num_clients, -1).clone()
        lr = self.step_size(problem, oracle.at_reference, snapshot)
        length = (oracle.uniform(self.epochs) * self.inner_steps).long()
        batches = oracle.batches()
        run = _Run(snapshot, stop, problem, lambda _, new, active: new, oracle.personal)
        for epoch in range(self.epochs):
            full, full_v = oracle.full_blocks(run.w, run.v, run.going, counts=False)
            run.test(problem.operator(run.w, full))
            if not bool(run.going.any()):
                break
            snapshot = w = run.w
            for k, batch in enumerate(islice(batches, self.inner_steps)):
                active = run.going & (k < length[:, epoch])
                if not bool(active.any()):
                    continue  # skip to the next epoch's minibatches
                batch = oracle.for_those(active, batch)
                correction = full - oracle.at_reference(snapshot, batch, run.v)
                g = oracle.shared_gradient(w, run.v, batch) + correction
                w = batch.keep(w - lr * problem.operator(w, g), w)
            run.w = w
            run.steps = run.steps + length[:, epoch] * run.going
            run.v = self.step_personal(run.v, full_v, run.going)
        return run.solution


class _Run:
    """Tracks the points of a chunk, which clients still go on, and how many steps each has taken."""

    def __init__(self, w: Tensor, stop: StoppingRule, problem: Subproblem, step: Step, personal: Tensor | None) -> None:
        self.w = w
        self.v = personal
        self.going = torch.ones(len(w), dtype=torch.bool, device=w.device)
        self.steps = w.new_zeros(len(w))
        self._stop = stop
        self._problem = problem
        self._step = step
        self._first: Tensor | None = None

    @property
    def solution(self) -> Solution:
        solved = (~self.going).to(self.w.dtype) if self._stop.needs_norms else None
        return Solution(self.w.detach(), self.steps, solved, self.v)

    def test(self, operator: Tensor, active: Tensor | None = None) -> None:
        """Apply the stopping rule to the operator ``[S, d]`` at the present points, for clients ``active [S]`` only."""
        if not self._stop.needs_norms:
            return
        squared_norm = operator.square().sum(1)
        self._first = squared_norm if self._first is None else self._first
        done = self._stop.done(self._problem, squared_norm, self._first)
        self.going = self.going & ~(done if active is None else done & active)

    def keep_personal(self, v: Tensor | None) -> None:
        """Take the new personal blocks ``[S, p]`` of clients that go on."""
        if v is None or self.v is None or not self._stop.needs_norms:
            self.v = v
        else:
            self.v = torch.where(self.going[:, None], v, self.v)

    def step(self, operator: Tensor, active: Tensor | None) -> bool:
        """Test, then step; return False if nobody goes on."""
        self.test(operator, active)
        if self._stop.needs_norms:
            active = self.going if active is None else active & self.going
            if not bool(active.any()):
                return False
        self.w = self._step(self.w, operator, active)
        self.steps = self.steps + (1 if active is None else active)
        return True
