"""K local steps of every client of a cohort, on one matrix ``[S, d]``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from fedlightning.oracle.gradient import GradientOracle, Minibatch

Direction = Callable[[Tensor, Tensor], Tensor]
"""``(w [S, d], g [S, d]) -> [S, d]``: from a client's point and operator to the direction it steps against."""


@torch.no_grad()
def descend(
    z: Tensor,
    oracle: GradientOracle,
    lr: float | Tensor,
    direction: Direction | None = None,
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None,
    personal_lr: float | Tensor = 0.0,
    clip: float | None = None,
    personal: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Start every client at ``z`` and take its local steps ``w <- w - lr * direction(w, g)``.

    With a personal block v the same minibatch gives ``v <- v - personal_lr * g_v``, both blocks at the same iterate. A
    client that has no more minibatches stays where it is.

    Args:
        z: Where all start, ``[d]``, or one start a client, ``[S, d]``.
        oracle: Operators and minibatches of the S clients.
        lr: Step size, a number or a vector ``[d]``.
        direction: Defaults to the operator itself.
        optimizer: Makes an elementwise optimizer for the matrix; on ``[S, d]`` it is one optimizer a client.
        personal_lr: Step size of the personal block.
        clip: Largest norm of a client's minibatch gradient, before ``direction``; see :func:`clip_rows`. None for none.
        personal: Where the personal blocks start, ``[S, p]``; None for where the round found them.

    Returns:
        The local points ``[S, d]``, a new tensor, and the personal blocks; None if there are none.
    """
    w = z.expand(oracle.num_clients, -1).clone()
    step = gradient_step(lr) if optimizer is None else optimizer_step(w, lr, optimizer)
    v = oracle.personal if personal is None else personal
    for batch in oracle.batches():
        g, v = clipped_step(oracle, w, v, batch, personal_lr, clip)
        w = step(w, g if direction is None else direction(w, g), batch.active)
    return w.detach(), v


def clipped_step(
    oracle: GradientOracle,
    w: Tensor,
    v: Tensor | None,
    batch: Minibatch,
    personal_lr: float | Tensor,
    clip: float | None,
) -> tuple[Tensor, Tensor | None]:
    """The operator and the personal step of ``oracle.step_personal``, both blocks of the gradient clipped together.

    Args:
        oracle: Operators of the S clients.
        w: Points, ``[S, d]``.
        v: Personal blocks, ``[S, p]``; None if there are none.
        batch: A minibatch of every client.
        personal_lr: Step size of the personal block; 0.0 if it stands still, and then only the operator is clipped.
        clip: Largest norm of a client's gradient; None for none.

    Returns:
        The operator ``[S, d]`` and the new personal blocks.
    """
    stands_still = v is None or (isinstance(personal_lr, float) and personal_lr == 0.0)
    if clip is None or stands_still:
        g, v = oracle.step_personal(w, v, batch, personal_lr)
        return (g if clip is None else clip_rows(clip, g)[0]), v
    assert v is not None
    g, g_v = clip_rows(clip, *oracle(w, v, batch))
    return g, batch.keep(v - personal_lr * g_v, v)


def clip_rows(clip: float, *blocks: Tensor) -> tuple[Tensor, ...]:
    """Scale every client's gradient to a norm of at most ``clip``, as ``torch.nn.utils.clip_grad_norm_`` does for one.

    Args:
        clip: Largest norm of a row, over all blocks together.
        blocks: ``[S, d]``, ``[S, p]``, ...: parts of the same clients' gradients.

    Returns:
        The blocks, scaled row by row. A row that is not finite stays so.
    """
    norm = torch.stack([block.square().sum(dim=1) for block in blocks]).sum(dim=0).sqrt()
    scale = (clip / (norm + 1e-6)).clamp(max=1.0)  # the 1e-6 is torch's
    return tuple(block * scale[:, None] for block in blocks)


Step = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""``(w [S, d], direction [S, d], active [S] or None) -> [S, d]``; may change w."""


def gradient_step(lr: float | Tensor) -> Step:
    """Plain steps ``w <- w - lr * direction``."""

    def step(w: Tensor, direction: Tensor, active: Tensor | None) -> Tensor:
        if active is not None:
            return torch.where(active[:, None], w - lr * direction, w)
        if isinstance(lr, Tensor):
            return w.addcmul_(lr, direction, value=-1)
        return w.sub_(direction, alpha=lr)

    return step


def optimizer_step(w: Tensor, lr: float | Tensor, make: Callable[[Iterable[Tensor]], Optimizer]) -> Step:
    """Steps of a torch optimizer over ``w``, which it changes.

    Elementwise optimizers move by lr times something, so a vector of step sizes scales the move of lr = 1. Others would
    mix the clients: see :func:`require_elementwise`.
    """
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


TRIAL_STEPS = 24
"""Steps of the trial: some optimizers mix coordinates only after a while."""


def require_elementwise(make: Callable[[Iterable[Tensor]], Optimizer], like: Tensor, argument: str) -> None:
    """Make sure that an optimizer over the matrix of several clients is one optimizer a client.

    What two clients do beside others is compared with what each does alone, on gradients of very different size, over
    some steps. It takes milliseconds, when an algorithm is bound; nothing in a round.

    Args:
        make: Makes the optimizer.
        like: Gives dtype and device of the trial.
        argument: What the message calls the optimizer.

    Raises:
        ValueError: If a client's steps depend on who is computed beside it, or the optimizer cannot step at all.
    """
    key = make, torch.promote_types(like.dtype, torch.float32), like.device
    try:
        objection = _known_objection(*key)
    except TypeError:  # a callable object that cannot be remembered
        objection = _objection(*key)
    if objection is not None:
        raise ValueError(
            f"{argument}={_name(make)} is not elementwise: {objection}. Use an elementwise one: SGD, Adam, AdamW, "
            "RMSprop, Adagrad, ..."
        )


def _objection(make: Callable[[Iterable[Tensor]], Optimizer], dtype: torch.dtype, device: torch.device) -> str | None:
    """Why an optimizer cannot be one a client; None if it can."""
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
    return None


_known_objection = lru_cache(maxsize=16)(_objection)  # algorithms are bound more than once a fit


def _trial(make: Callable[[Iterable[Tensor]], Optimizer], start: Tensor, gradients: Tensor) -> Tensor:
    """Where an optimizer goes from ``start [S, d]`` along ``gradients [steps, S, d]``."""
    w = start.clone()
    with torch.enable_grad(), torch.random.fork_rng(devices=[w.device] if w.device.type == "cuda" else []):
        torch.manual_seed(0)
        step = optimizer_step(w, 0.1, make)
        for gradient in gradients:
            step(w, gradient.clone(), None)
    return w.detach()


def _name(make: Any) -> str:
    """The optimizer's name, as given directly or as a partial."""
    made = getattr(make, "func", make)
    return str(getattr(made, "__name__", made))
