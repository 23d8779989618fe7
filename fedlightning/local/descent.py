"""K local steps of every client of a cohort, on one matrix ``[S, d]``."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.local.clipping import Clip, clipped
from fedlightning.local.optimizers import LocalOptimizer, OptimizerSteps

if TYPE_CHECKING:
    from fedlightning.oracle.gradient import GradientOracle
    from fedlightning.oracle.minibatch import Minibatch

Direction = Callable[[Tensor, Tensor], Tensor]
"""``(w [S, d], g [S, d]) -> [S, d]``: maps clients' points and operators to the directions that are subtracted."""

OptimizerCallable = Callable[[Iterable[Tensor]], Optimizer]
"""Makes an optimizer over given tensors, e.g. ``torch.optim.Adam`` or a ``functools.partial`` of it."""

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


Step = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""``(w [S, d], direction [S, d], active [S] or None) -> [S, d]``: steps from w, which may be changed in place."""


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
    key = make, torch.promote_types(like.dtype, torch.float32), like.device
    try:
        objection = _known_objection(*key)
    except TypeError:  # an object that is not hashable
        objection = _objection(*key)
    if objection is not None:
        raise InvalidValueError(
            f"{argument}={name_of_optimizer(make)} is not elementwise: {objection}. Use an elementwise one: SGD, Adam, "
            "AdamW, RMSprop, Adagrad, ..."
        )


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


_known_objection = lru_cache(maxsize=16)(_objection)  # algorithms are bound more than once a fit


def _require_proportional(make: OptimizerCallable, like: Tensor) -> None:
    """Check that an optimizer's moves are proportional to its step size; Rprop's and ASGD's are not."""
    key = make, torch.float64, like.device
    try:
        is_proportional = _known_proportional(*key)
    except TypeError:  # an object that is not hashable
        is_proportional = _is_proportional(*key)
    if not is_proportional:
        raise InvalidValueError(
            f"{name_of_optimizer(make)}: its moves are not proportional to lr, so it cannot take step sizes by name "
            "prefix, nor those of an algorithm that keeps a block still (FedBABU's head). Give one lr, or an optimizer "
            "like SGD, Adam, AdamW, RMSprop, Adagrad."
        )


def _is_proportional(make: OptimizerCallable, dtype: torch.dtype, device: torch.device) -> bool:
    draw = torch.Generator().manual_seed(0)
    drawn = torch.randn(TRIAL_STEPS, 1, 5, generator=draw)
    start, *gradients = torch.cat([drawn, drawn[-1:].expand(_CONSTANT_STEPS, -1, -1)]).to(device, dtype)
    one, scaled = (_trial(make, start, torch.stack(gradients), lr) for lr in (_LR, torch.full_like(start[0], _LR)))
    moved = (one - start).abs().max()
    return bool((one - scaled).abs().max() <= math.sqrt(torch.finfo(dtype).eps) * (1 + moved))


_known_proportional = lru_cache(maxsize=16)(_is_proportional)
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
