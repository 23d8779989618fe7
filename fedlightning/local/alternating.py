"""Local solvers that move one block while the other stays fixed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedlightning.local.clipping import Clip, clipped
from fedlightning.local.descent import Direction, gradient_step
from fedlightning.local.torch_optimizers import Step
from fedlightning.oracle.gradient import GradientOracle


@torch.no_grad()
def descend_personal(
    w: Tensor,
    oracle: GradientOracle,
    lr: float | Tensor,
    direction: Callable[[Tensor, Tensor], Tensor] | None = None,
    passes: int = 1,
    clip: Clip | None = None,
    step: Step | None = None,
) -> Tensor | None:
    """Take steps ``v <- v - lr * direction(v, g_v)`` of every client's personal block at a fixed shared point.

    Args:
        w: The shared point of each client, ``[S, d]``.
        oracle: Operators and minibatches of the S clients.
        lr: Step size, a number or a vector ``[p]``.
        direction: ``(v [S, p], g_v [S, p]) -> [S, p]``; defaults to the gradient itself.
        passes: Number of passes over the round's minibatches.
        clip: Limit of a client's minibatch gradient in the personal block, before ``direction``; None for none.
        step: Takes the steps along the directions; None for plain steps of size ``lr``.

    Returns:
        The personal blocks ``[S, p]``; None if there are none, in which case nothing is computed.
    """
    v = oracle.personal
    if v is None:
        return None
    v, step = v.clone(), gradient_step(lr) if step is None else step
    for _ in range(passes):
        for batch in oracle.batches():
            g = oracle.personal_gradient(w, v, batch)
            (g,) = clipped(clip, g)
            v = step(v, g if direction is None else direction(v, g), batch.active)
    return v


@torch.no_grad()
def descend_until(
    w: Tensor, v: Tensor | None, oracle: GradientOracle, lr: float | Tensor, direction: Direction, tolerance: Tensor
) -> Tensor:
    """Take steps ``w <- w - lr * direction(w, g)`` until each client's squared direction is small.

    A client stops, for this round, once its direction on a minibatch satisfies ``|direction|^2 <= tolerance``, or when
    its minibatches are used up. Personal blocks stay fixed.

    Args:
        w: Where each client starts, ``[S, d]``.
        v: The personal blocks, ``[S, p]``; None if there are none.
        oracle: Operators and minibatches of the S clients.
        lr: Step size, a number or a vector ``[d]``.
        direction: ``(w [S, d], g [S, d]) -> [S, d]``.
        tolerance: Largest squared norm at which each client stops, ``[S]``; 0 never stops a client that can still move.

    Returns:
        The points after the steps, ``[S, d]``, a new tensor.
    """
    w = w.clone()
    going = torch.ones_like(oracle.steps, dtype=torch.bool)
    for batch in oracle.batches():
        going = going if batch.active is None else going & batch.active
        if not bool(going.any()):
            break
        step = direction(w, oracle.shared_gradient(w, v, oracle.for_those(going, batch)))
        going = going & ~(step.square().sum(1) <= tolerance)  # a client at NaN goes on, and is left out
        w = torch.where(going[:, None], w - lr * step, w)
    return w
