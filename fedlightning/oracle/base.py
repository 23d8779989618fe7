"""How the operator of a cohort is computed: the contract of :class:`Oracle`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedlightning.oracle.objective import Objective


@dataclass(frozen=True)
class Evaluation:
    """Operators of S clients at their own points, and what fell out on the way.

    Attributes:
        g: Operator in the shared block, ``[S, d]``, in the parameters' dtype.
        g_personal: Gradient in the personal block, ``[S, p]`` (p may be 0).
        buffers: New values of the buffers the objective changes, ``[S, b]`` (b may be 0).
        loss: Values f_i, ``[S]``.
        scalars: Further values of the objective to log, each ``[S]``.
    """

    g: Tensor
    g_personal: Tensor
    buffers: Tensor
    loss: Tensor
    scalars: dict[str, Tensor] = field(default_factory=dict)


Evaluate = Callable[[Tensor, Tensor, Tensor, Any], Evaluation]
"""``(w [S, d], v [S, p], buffers [S, b], data with leaves [S, ...])`` to :class:`Evaluation`."""


@dataclass(frozen=True)
class Cost:
    """What one client's gradient takes.

    Attributes:
        dim: Parameters, shared and personal.
        itemsize: Bytes of one.
        activation_bytes: Memory autograd keeps between forward and backward pass of one minibatch.
        free_bytes: Memory that may be used on the device; None on a CPU, where the caches limit earlier.
    """

    dim: int
    itemsize: int
    activation_bytes: int
    free_bytes: int | None = None


class Oracle(ABC):
    """A way to compute the operators of a cohort. All ways agree; they differ in speed, memory and what they allow."""

    @abstractmethod
    def chunk(self, cost: Cost) -> int:
        """How many clients are computed together."""

    @abstractmethod
    def evaluator(self, objective: Objective, calls: int) -> Evaluate:
        """The function that computes operators for one chunk in one round.

        Args:
            objective: The task's objective.
            calls: How often it will be called, roughly.
        """


def differentiate(
    objective: Objective, forward: Callable[..., Any], w: Tensor, v: Tensor, b: Tensor, data: Any
) -> Evaluation:
    """Run ``forward`` and take the gradient of the summed losses: each client's part of it is its own gradient.

    Gradients are taken for views of the rows, one a parameter, never through slices of the flat matrix.

    Args:
        objective: Gives layouts and precision.
        forward: ``objective`` itself for one client, or a batched version of it.
        w: Points, ``[d]`` for one client or ``[S, d]``.
        v: Personal blocks, likewise.
        b: Buffers, likewise.
        data: One client's minibatch, or leaves ``[S, ...]``.
    """
    space, autocast = objective.space, objective.autocast
    clients = len(w) if w.dim() == 2 else 1
    shared = {name: view.detach().requires_grad_() for name, view in space.shared.views(w).items()}
    personal = {name: view.detach().requires_grad_() for name, view in space.personal.views(v).items()}
    with torch.enable_grad():
        with autocast():
            loss, scalars, buffers = forward(shared, personal, space.buffers.views(b), data)
        total = loss.sum() if autocast.scale == 1 else loss.sum() * autocast.scale
    grads = torch.autograd.grad(
        total, [*shared.values(), *personal.values()], allow_unused=True, materialize_grads=True
    )
    g = space.shared.flatten(grads[: len(shared)], clients)
    g_personal = space.personal.flatten(grads[len(shared) :], clients) if personal else v.reshape(clients, -1)
    if autocast.scale != 1:
        g, g_personal = g / autocast.scale, g_personal / autocast.scale
    return Evaluation(
        space.shared.to_operator_(g),
        g_personal,
        space.buffers.flatten([t.to(w.dtype) for t in buffers], clients) if buffers else b.reshape(clients, -1),
        loss.detach().reshape(clients),
        {name: value.reshape(clients) for name, value in scalars.items()},
    )
