"""Optimizers of torch as local steps over a matrix of clients, and trials of whether they step each client alike."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedlightning.core.errors import InvalidValueError
from fedlightning.local.optimizers import LocalOptimizer

T = TypeVar("T")

OptimizerCallable = Callable[[Iterable[Tensor]], Optimizer]
"""Makes an optimizer over given tensors, e.g. ``torch.optim.Adam`` or a ``functools.partial`` of it."""

Step = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""``(w [S, d], direction [S, d], active [S] or None) -> [S, d]``: steps from w, which may be changed in place."""


def optimizer_step(w: Tensor, lr: float | Tensor, make: OptimizerCallable) -> Step:
    """Return a function that takes the steps of a torch optimizer over ``w``, which is changed in place.

    The moves of most optimizers are proportional to lr, so a vector of step sizes scales the move of lr = 1. Optimizers
    that are not elementwise would mix the clients: see :func:`require_elementwise`.

    Raises:
        ValueError: If step sizes are a vector, and the optimizer's moves are not proportional to them.
    """
    if isinstance(lr, Tensor):
        _require_proportional(make, w)
    return _optimizer_step(w, lr, make)


def _optimizer_step(w: Tensor, lr: float | Tensor, make: OptimizerCallable) -> Step:
    w.requires_grad_()
    optimizer = make([w])
    for group in optimizer.param_groups:
        group["lr"] = 1.0 if isinstance(lr, Tensor) else lr

    def step(w: Tensor, direction: Tensor, active: Tensor | None) -> Tensor:
        before = w.detach().clone() if active is not None or isinstance(lr, Tensor) else None
        w.grad = direction
        optimizer.step()
        with torch.no_grad():
            if isinstance(lr, Tensor) and before is not None:
                w.copy_(before + lr * (w - before))
            if active is not None and before is not None:
                w.copy_(torch.where(active[:, None], w, before))
        return w

    return step


def own_step_size(make: OptimizerCallable) -> float | None:
    """Return the step size that an optimizer brings along, which no local step has.

    None if it is that of a class of torch's by itself, or 1, which stands for any.
    """
    made = make([torch.zeros(1, requires_grad=True)])
    lr, known = made.defaults.get("lr"), inspect.signature(type(made)).parameters.get("lr")
    return None if lr is None or float(lr) in (1.0, known.default if known else None) else float(lr)


def last_move(optimizer: OptimizerCallable | LocalOptimizer, z: Tensor, gradients: Sequence[float]) -> Tensor:
    """Return how far the last of some steps moves parameters of 1, ``[d]``.

    Args:
        optimizer: Bound to the task's parameters.
        z: Shared parameters, ``[d]``; gives shape, dtype and device.
        gradients: The gradient of every parameter at each step, at least one.
    """
    point, along = torch.ones_like(z)[None], [torch.full_like(z, each)[None] for each in gradients]
    if isinstance(optimizer, LocalOptimizer):
        moments = optimizer.start(point)
        for gradient in along:
            move, moments = optimizer.move(point, gradient, moments)
        return move[0]
    *before, _ = along
    start = _trial(optimizer, point, torch.stack(before)) if before else point
    return (start - _trial(optimizer, point, torch.stack(along)))[0]


TRIAL_STEPS = 24
"""Number of steps in the trial, as some optimizers mix coordinates only after a while."""


def require_elementwise(make: OptimizerCallable, like: Tensor, argument: str) -> None:
    """Check that an optimizer over the matrix of several clients acts as one optimizer for each client.

    The steps of two clients beside others are compared with the steps of each client alone, on gradients of very
    different sizes. The check takes milliseconds when an algorithm is bound, and no time in a round.

    Args:
        make: Makes the optimizer.
        like: Gives dtype and device of the trial.
        argument: What the message calls the optimizer.

    Raises:
        ValueError: If a client's steps depend on the clients computed beside it or on the shapes of parameters, or the
            optimizer cannot step at all.
    """
    objection = _objection(make, torch.promote_types(like.dtype, torch.float32), like.device)
    if objection is not None:
        raise InvalidValueError(
            f"{argument}={name_of_optimizer(make)} is not elementwise: {objection}. Use an elementwise one: SGD, Adam, "
            "AdamW, RMSprop, Adagrad, ..."
        )


def _remembered(trial: Callable[..., T]) -> Callable[..., T]:
    """Keep what a trial of an optimizer found, as algorithms are bound more than once a fit."""
    known = lru_cache(maxsize=16)(trial)

    @wraps(trial)
    def remembering(*args: Any) -> T:
        try:
            hash(args)
        except TypeError:  # an optimizer's maker that is not hashable
            return trial(*args)
        return known(*args)

    return remembering


@_remembered
def _objection(make: OptimizerCallable, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why an optimizer does not act as one for each client; None if it does."""
    draw = torch.Generator().manual_seed(0)
    for clients, dim in ((2, 5), (160, 130)):  # some optimizers treat small matrices elementwise
        sizes = 10.0 ** torch.randint(-2, 3, (TRIAL_STEPS, clients, 1), generator=draw)
        gradients = (torch.randn(TRIAL_STEPS, clients, dim, generator=draw) * sizes).to(device, dtype)
        start = torch.randn(clients, dim, generator=draw).to(device, dtype)
        try:
            together = _trial(make, start, gradients)
            alone = torch.cat([_trial(make, start[i : i + 1], gradients[:, i : i + 1]) for i in (0, 1)])
        except Exception as error:
            return f"a step on gradients alone failed ({type(error).__name__}: {error})"
        moved = (alone - start[:2]).abs().max()
        if not bool((together[:2] - alone).abs().max() <= math.sqrt(torch.finfo(dtype).eps) * (1 + moved)):
            return (
                "on the matrix of several clients it mixes them (by norms, statistics of rows and columns, line "
                "searches or common random numbers), so a client's steps would depend on who is computed beside it"
            )
    return _objection_by_shape(make, dtype, device)


def _objection_by_shape(make: OptimizerCallable, dtype: torch.dtype, device: torch.device) -> str | None:
    """Return why an optimizer does not step a client's row as it steps parameters in their shapes; None if it does."""
    draw = torch.Generator().manual_seed(0)
    for dims in (1, 2, 4):  # biases, matrices, convolutions
        start, *gradients = torch.randn(TRIAL_STEPS, *[3] * dims, generator=draw).to(device, dtype)
        in_shape = _trial(make, start, torch.stack(gradients)).flatten()
        in_row = _trial(make, start.flatten()[None], torch.stack([g.flatten()[None] for g in gradients]))[0]
        moved = (in_shape - start.flatten()).abs().max()
        if not bool((in_row - in_shape).abs().max() <= math.sqrt(torch.finfo(dtype).eps) * (1 + moved)):
            return (
                f"a parameter of shape {[3] * dims} is stepped otherwise than in a row, [1, {3**dims}], where clients' "
                "parameters lie (decay of matrices alone, centralised gradients)"
            )
    return None


def _require_proportional(make: OptimizerCallable, like: Tensor) -> None:
    """Check that an optimizer's moves are proportional to its step size; Rprop's and ASGD's are not."""
    if not _is_proportional(make, like.device):
        raise InvalidValueError(
            f"{name_of_optimizer(make)}: its moves are not proportional to lr, so it cannot take step sizes by name "
            "prefix, nor those of an algorithm that keeps a block still (FedBABU's head). Give one lr, or an optimizer "
            "like SGD, Adam, AdamW, RMSprop, Adagrad."
        )


@_remembered
def _is_proportional(make: OptimizerCallable, device: torch.device) -> bool:
    draw, dtype = torch.Generator().manual_seed(0), torch.float64
    drawn = torch.randn(TRIAL_STEPS, 1, 5, generator=draw)
    start, *gradients = torch.cat([drawn, drawn[-1:].expand(_CONSTANT_STEPS, -1, -1)]).to(device, dtype)
    one, scaled = (_trial(make, start, torch.stack(gradients), lr) for lr in (_LR, torch.full_like(start[0], _LR)))
    moved = (one - start).abs().max()
    return bool((one - scaled).abs().max() <= math.sqrt(torch.finfo(dtype).eps) * (1 + moved))


_LR = 0.1
_CONSTANT_STEPS = 40  # in which Rprop's step sizes grow beyond their bound


def _trial(make: OptimizerCallable, start: Tensor, gradients: Tensor, lr: float | Tensor = _LR) -> Tensor:
    """Return where an optimizer goes from ``start [S, d]`` along ``gradients [steps, S, d]``."""
    w = start.clone()
    with torch.enable_grad(), torch.random.fork_rng(devices=[w.device] if w.device.type == "cuda" else []):
        torch.manual_seed(0)
        step = _optimizer_step(w, lr, make)
        for gradient in gradients:
            step(w, gradient.clone(), None)
    return w.detach()


def name_of_optimizer(make: Any) -> str:
    """Return the name of an optimizer that is given directly or as a partial."""
    made = getattr(make, "func", make)
    return str(getattr(made, "__name__", made))
