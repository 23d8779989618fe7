"""K local steps of every client of a cohort, on one matrix ``[S, d]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from fedlightning.oracle.cohort import CohortOracle, Minibatch

Direction = Callable[[Tensor, Tensor], Tensor]
"""``(w [S, d], g [S, d]) -> [S, d]``: from a client's point and operator to the direction it steps against."""


@torch.no_grad()
def descend(
    z: Tensor,
    oracle: CohortOracle,
    lr: float | Tensor,
    direction: Direction | None = None,
    optimizer: Callable[[Iterable[Tensor]], Optimizer] | None = None,
    personal_lr: float | Tensor = 0.0,
    clip: float | None = None,
) -> Tensor:
    """Start every client at ``z`` and take its local steps ``w <- w - lr * direction(w, g)``.

    With a personal block v the same minibatch gives ``v <- v - personal_lr * g_v`` (both blocks at the same iterate);
    the result is left in ``oracle.personal``. A client that has no more minibatches stays where it is.

    Args:
        z: Where all start, ``[d]``, or one start a client, ``[S, d]``.
        oracle: Operators and minibatches of the S clients.
        lr: Step size, a number or a vector ``[d]``.
        direction: Defaults to the operator itself.
        optimizer: Makes an elementwise optimizer for the matrix; on ``[S, d]`` it is one optimizer a client.
        personal_lr: Step size of the personal block.
        clip: Largest norm of a client's minibatch gradient, before ``direction``; see :func:`clip_rows`. None for none.

    Returns:
        ``[S, d]``, a new tensor.
    """
    w = z.expand(oracle.clients, -1).clone()
    step = gradient_step(lr) if optimizer is None else optimizer_step(w, lr, optimizer)
    for batch in oracle.batches():
        g = follow(oracle, w, batch, personal_lr, clip)
        w = step(w, g if direction is None else direction(w, g), batch.active)
    return w.detach()


def follow(
    oracle: CohortOracle, w: Tensor, batch: Minibatch, personal_lr: float | Tensor, clip: float | None
) -> Tensor:
    """The operator at ``w`` as ``oracle.follow`` gives it, clipped together with the gradient of the personal block.

    Args:
        oracle: Operators of the S clients; its personal block takes its step.
        w: ``[S, d]``.
        batch: A minibatch of every client.
        personal_lr: Step size of the personal block; 0.0 if it stands still, and then only the operator is clipped.
        clip: Largest norm of a client's gradient; None for none.

    Returns:
        ``[S, d]``.
    """
    stands_still = oracle.personal is None or (isinstance(personal_lr, float) and personal_lr == 0.0)
    if clip is None or stands_still:
        g = oracle.follow(w, batch, personal_lr)
        return g if clip is None else clip_rows(clip, g)[0]
    v = oracle.personal
    assert v is not None
    g, g_v = clip_rows(clip, *oracle(w, v, batch))
    oracle.personal = batch.keep(v - personal_lr * g_v, v)
    return g


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

    Elementwise optimizers move by lr times something, so a vector of step sizes scales the move of lr = 1.
    """
    w.requires_grad_()
    optimizer = make([w])
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("local_optimizer=LBFGS is not elementwise: clients would share its line search. Use another.")
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
