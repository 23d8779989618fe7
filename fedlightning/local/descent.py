"""K local steps of every client of a cohort, on one matrix ``[S, d]``."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.local.clipping import Clip, clipped
from fedlightning.local.optimizers import LocalOptimizer, OptimizerSteps
from fedlightning.local.torch_optimizers import OptimizerCallable, Step, optimizer_step, require_elementwise

if TYPE_CHECKING:
    from fedlightning.oracle.gradient import GradientOracle
    from fedlightning.oracle.minibatch import Minibatch

Direction = Callable[[Tensor, Tensor], Tensor]
"""``(w [S, d], g [S, d]) -> [S, d]``: maps clients' points and operators to the directions that are subtracted."""

AnyOptimizer = OptimizerCallable | LocalOptimizer | OptimizerSteps | None
"""How local steps are taken: by a torch optimizer or one of this package, begun or not; None for plain steps."""


@torch.no_grad()
def descend(
    z: Tensor,
    oracle: GradientOracle,
    lr: float | Tensor,
    direction: Direction | None = None,
    optimizer: AnyOptimizer = None,
    personal_lr: float | Tensor = 0.0,
    clip: Clip | None = None,
    personal: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Start every client at ``z`` and take its local steps ``w <- w - lr * direction(w, g)``.

    With a personal block v the same minibatch gives ``v <- v - personal_lr * g_v``, both blocks at the same iterate. A
    client without further minibatches stays where it is.

    Args:
        z: Start of all clients, ``[d]``, or of each client, ``[S, d]``.
        oracle: Operators and minibatches of the S clients.
        lr: Step size, a number or a vector ``[d]``.
        direction: Defaults to the operator itself.
        optimizer: Acts as one optimizer for each client: a bound :class:`~fedlightning.local.LocalOptimizer`, its
            :class:`~fedlightning.local.optimizers.OptimizerSteps` to go on from moments, or what makes an elementwise
            torch optimizer for the matrix ``[S, d]``. None for plain gradient steps.
        personal_lr: Step size of the personal block, which a :class:`~fedlightning.local.LocalOptimizer` moves as well;
            otherwise it takes plain steps.
        clip: Limit of a client's minibatch gradient, before ``direction``; see :func:`clipped`. None for none.
        personal: Start of the personal blocks, ``[S, p]``; None for their values at the start of the round.

    Returns:
        The local points ``[S, d]``, a new tensor, and the personal blocks ``[S, p]``, or None if there are none.
    """
    w = z.expand(oracle.num_clients, -1).clone()
    v = oracle.personal if personal is None else personal
    is_plain = optimizer is None and clip is None and _stands_still(v, personal_lr)
    if oracle.steps_together and is_plain:
        return _several_at_once(w, v, oracle, lr, direction), v
    step, personal_step = steps_of(optimizer, w, lr, personal_lr)
    size = _representable(lr, w.dtype)
    in_place, batches = is_plain and direction is None, oracle.batches()
    while batch := oracle.steps_in_place(w, v, batches, size) if in_place else next(batches, None):
        g, v = clipped_step(oracle, w, v, batch, personal_lr, clip, personal_step)
        w = step(w, g if direction is None else direction(w, g), batch.active)
        del g  # steps in place need the memory
    return w.detach(), v


def clipped_step(
    oracle: GradientOracle,
    w: Tensor,
    v: Tensor | None,
    batch: Minibatch,
    personal_lr: float | Tensor,
    clip: Clip | None,
    personal_step: Step | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Compute the operator and take the personal step, with both blocks of the gradient clipped together.

    Without clipping and with plain steps, this is ``oracle.step_personal``.

    Args:
        oracle: Operators of the S clients.
        w: Points, ``[S, d]``.
        v: Personal blocks, ``[S, p]``; None if there are none.
        batch: A minibatch of every client.
        personal_lr: Step size of the personal block; 0.0 without a ``personal_step`` keeps the block fixed, and then
            only the operator is clipped.
        clip: Limit of a client's gradient; None for none.
        personal_step: Steps the personal block; None for plain steps of size ``personal_lr``.

    Returns:
        The clipped operator ``[S, d]``, and the new personal blocks ``[S, p]`` or None.
    """
    if v is None or (personal_step is None and (clip is None or _stands_still(v, personal_lr))):
        g, v = oracle.step_personal(w, v, batch, personal_lr)
        return clipped(clip, g)[0], v
    g, g_v = clipped(clip, *oracle(w, v, batch))
    if personal_step is None:
        return g, batch.keep(v - personal_lr * g_v, v)
    return g, personal_step(v, g_v, batch.active)


def _stands_still(v: Tensor | None, personal_lr: float | Tensor) -> bool:
    """Return whether there is no personal block ``v [S, p]`` that a step would move."""
    return v is None or (isinstance(personal_lr, float) and personal_lr == 0.0)


def _several_at_once(
    w: Tensor, v: Tensor | None, oracle: GradientOracle, lr: float | Tensor, direction: Direction | None
) -> Tensor:
    """Take plain steps from ``w``, as many at once as the oracle likes best; single ones are left at the end."""
    size = torch.as_tensor(lr, dtype=w.dtype, device=w.device)  # compiled once for all step sizes

    def move(w: Tensor, g: Tensor) -> Tensor:
        return w - size * (g if direction is None else direction(w, g))

    batches, step = oracle.batches(), gradient_step(lr)
    while group := list(islice(batches, oracle.steps_together)):
        if len(group) == oracle.steps_together and all(batch.active is None for batch in group):
            w = oracle.take_steps(w, v, group, move)
            continue
        for batch in group:
            g = oracle.shared_gradient(w, v, batch)
            w = step(w, g if direction is None else direction(w, g), batch.active)
    return w.detach()


def gradient_step(lr: float | Tensor) -> Step:
    """Return a function that takes plain steps ``w <- w - lr * direction``."""

    def step(w: Tensor, direction: Tensor, active: Tensor | None) -> Tensor:
        size = _representable(lr, w.dtype)
        if active is not None and size is math.inf:  # times 0 it would be NaN
            return torch.where(active[:, None], w - size * direction, w)
        if active is not None:
            direction = torch.where(active[:, None], direction, 0.0)
        if isinstance(size, Tensor):
            return w.addcmul_(size, direction, value=-1)
        return w.sub_(direction, alpha=size)

    return step


def _representable(lr: float | Tensor, dtype: torch.dtype) -> Any:
    """Return the step size, or infinity if it is too large for the dtype: torch refuses such a factor."""
    return math.inf if not isinstance(lr, Tensor) and lr > torch.finfo(dtype).max else lr


def steps_of(
    optimizer: AnyOptimizer, w: Tensor, lr: float | Tensor, personal_lr: float | Tensor = 0.0
) -> tuple[Step, Step | None]:
    """Return what steps the shared blocks, and what the personal blocks; None where these take plain steps or none.

    Args:
        optimizer: How local steps are taken.
        w: Start of the shared blocks, which a torch optimizer changes in place.
        lr: Step size of the shared block.
        personal_lr: Step size of the personal block.
    """
    if optimizer is None:
        return gradient_step(lr), None
    if isinstance(optimizer, LocalOptimizer):
        fixed = isinstance(personal_lr, float) and personal_lr == 0.0
        personal = None if fixed else OptimizerSteps(optimizer.personal, personal_lr)
        optimizer = OptimizerSteps(optimizer, lr, personal=personal)
    if isinstance(optimizer, OptimizerSteps):
        return optimizer, optimizer.personal
    return optimizer_step(w, lr, optimizer), None


def bound_optimizer(
    optimizer: OptimizerCallable | LocalOptimizer | None, space: ParameterSpace, like: Tensor, argument: str
) -> OptimizerCallable | LocalOptimizer | None:
    """Return a local optimizer that is ready to step, or None for plain steps.

    Args:
        optimizer: As the user gave it.
        space: Names and blocks of the parameters.
        like: Gives dtype and device of vectors.
        argument: What messages call the optimizer.

    Raises:
        ValueError: If a torch optimizer is not elementwise, or a hyper-parameter does not fit the parameters.
    """
    if isinstance(optimizer, LocalOptimizer):
        return optimizer.bind(space, like)
    if optimizer is not None:
        require_elementwise(optimizer, like, argument)
    return optimizer
