"""How the operator of a cohort is computed: the contract of :class:`ClientBatching`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedlightning.oracle.objective import Objective
from fedlightning.oracle.randomness import Randomness


@dataclass(frozen=True)
class Evaluation:
    """Operators of S clients at their own points, and what fell out on the way.

    Attributes:
        g: Operator in the shared block, ``[S, d]``, in the parameters' dtype; ``[S, 0]`` where it was not asked for.
        g_personal: Gradient in the personal block, ``[S, p]`` (p may be 0); ``[S, 0]`` where it was not asked for.
        buffers: New values of the buffers the objective changes, ``[S, b]`` (b may be 0).
        loss: Values f_i, ``[S]``.
        scalars: Further values of the objective to log, each ``[S]``.
    """

    g: Tensor
    g_personal: Tensor
    buffers: Tensor
    loss: Tensor
    scalars: dict[str, Tensor] = field(default_factory=dict)


Blocks = Literal["both", "shared", "personal"]
"""Which gradients are asked for. The backward pass leaves out what only the other block needs."""


class Evaluate(Protocol):
    """A function that computes operators."""

    def __call__(
        self,
        w: Tensor,
        v: Tensor,
        b: Tensor,
        data: Any,
        blocks: Blocks = "both",
        randomness: Randomness | None = None,
    ) -> Evaluation:
        """The operators of S clients.

        Args:
            w: Points, ``[S, d]``.
            v: Personal blocks, ``[S, p]``.
            b: Buffers, ``[S, b]``.
            data: Leaves ``[S, ...]``.
            blocks: The gradients to compute.
            randomness: Each client's random numbers; None to draw from the default generators as they are.
        """


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


class ClientBatching(ABC):
    """A way to compute the operators of a cohort. All ways agree; they differ in speed, memory and what they allow.

    Attributes:
        threads: Threads of this process that compute a round; None for as many as PyTorch takes.
    """

    threads: int | None = None

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
    objective: Objective,
    forward: Callable[..., Any],
    w: Tensor,
    v: Tensor,
    b: Tensor,
    data: Any,
    blocks: Blocks = "both",
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
        blocks: The gradients to compute.
    """
    space, autocast = objective.space, objective.autocast
    clients = len(w) if w.dim() == 2 else 1
    shared = {name: view.detach() for name, view in space.shared.views(w).items()}
    personal = {name: view.detach() for name, view in space.personal.views(v).items()}
    moved = [
        [view.requires_grad_() for view in views.values()] if blocks in ("both", block) else []
        for block, views in (("shared", shared), ("personal", personal))
    ]
    with torch.enable_grad():
        with autocast():
            loss, scalars, buffers = forward(shared, personal, space.buffers.views(b), data)
        total = loss.sum() if autocast.scale == 1 else loss.sum() * autocast.scale
    points = moved[0] + moved[1]
    if blocks == "both" and not total.requires_grad:
        raise RuntimeError(
            "the loss does not depend on the parameters that are trained: it was detached, computed under no_grad or "
            "in NumPy, or from data alone. Compute it from self's parameters with torch"
        )
    if total.requires_grad:
        found = torch.autograd.grad(total, points, allow_unused=True, materialize_grads=True)
        grads = tuple(gradient.to_dense() if gradient.is_sparse else gradient for gradient in found)
    else:  # a loss may leave one block out
        grads = tuple(torch.zeros_like(point) for point in points)
    g, g_personal = collected(objective, grads[: len(moved[0])], grads[len(moved[0]) :], w, clients)
    return Evaluation(
        g,
        g_personal,
        space.buffers.flatten([t.to(w.dtype) for t in buffers], clients) if buffers else b.reshape(clients, -1),
        loss.detach().reshape(clients),
        {name: value.reshape(clients) for name, value in scalars.items()},
    )


def collected(
    objective: Objective, shared: Sequence[Tensor], personal: Sequence[Tensor], w: Tensor, num_clients: int
) -> tuple[Tensor, Tensor]:
    """Gradients by parameter as rows: the operator ``[S, d]`` and ``[S, p]``; ``[S, 0]`` without any gradient.

    Args:
        objective: Gives layouts and precision.
        shared: Gradients of the shared parameters, in their order, scaled as ``objective.autocast`` says; or none.
        personal: Those of the personal ones; or none.
        w: Gives dtype and device.
        num_clients: S.
    """
    space, scale = objective.space, objective.autocast.scale
    g = space.shared.flatten(shared, num_clients) if shared else w.new_empty((num_clients, 0))
    g_personal = space.personal.flatten(personal, num_clients) if personal else w.new_empty((num_clients, 0))
    if scale != 1:
        g, g_personal = g / scale, g_personal / scale
    return (space.shared.to_operator_(g) if shared else g), g_personal
