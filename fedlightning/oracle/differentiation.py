"""From losses to operators: the backward pass of one client, or of many at once, and what is made of its gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from fedlightning.oracle.base import Blocks, Evaluation
from fedlightning.oracle.effects.graph import is_checkpointed
from fedlightning.oracle.errors import reads_late
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.refused import NOTHING, Refused


@dataclass(frozen=True)
class Gradients:
    """Holds what a backward pass has found for S clients, before gradients are joined.

    Attributes:
        points: The shared parameters at which it was found, which lie in the points; empty if their block was left out.
        shared: Their gradients.
        personal: Gradients of the personal parameters; empty if their block was left out.
        buffers: New values of the buffers, ``[S, b]``.
        loss: Values of the objectives, ``[S]``.
        scalars: Further values to log, each ``[S]``.
    """

    points: list[Tensor]
    shared: Sequence[Tensor]
    personal: Sequence[Tensor]
    buffers: Tensor
    loss: Tensor
    scalars: dict[str, Tensor]

    def joined(self, objective: Objective, w: Tensor) -> Evaluation:
        """Return the evaluation, with the gradients joined and the operator's signs.

        Args:
            objective: The objective, which gives layouts and precision.
            w: Gives dtype and device.
        """
        g, g_personal = collected(objective, self.shared, self.personal, w, len(self.loss))
        return Evaluation(g, g_personal, self.buffers, self.loss, self.scalars)


def differentiate(
    objective: Objective,
    forward: Callable[..., Any],
    w: Tensor,
    v: Tensor,
    b: Tensor,
    data: Any,
    blocks: Blocks = "both",
    refused: frozenset[Any] = NOTHING,
) -> Evaluation:
    """Return the operators that :func:`gradients` finds, joined; the arguments are the same."""
    return gradients(objective, forward, w, v, b, data, blocks, refused).joined(objective, w)


def leaves_at(
    objective: Objective, w: Tensor, v: Tensor, blocks: Blocks
) -> tuple[dict[str, Tensor], dict[str, Tensor], list[list[Tensor]]]:
    """Return shared and personal parameters by name, and those of each block of which gradients are taken.

    Args:
        objective: The objective, which gives layouts.
        w: Points, ``[d]`` for one client or ``[S, d]``.
        v: Personal blocks, likewise.
        blocks: The gradients to compute.
    """
    shared = {name: view.detach() for name, view in objective.space.shared.views(w).items()}
    personal = {name: view.detach() for name, view in objective.space.personal.views(v).items()}
    moved = [
        [view.requires_grad_() for view in views.values()] if blocks in ("both", block) else []
        for block, views in (("shared", shared), ("personal", personal))
    ]
    return shared, personal, moved


def gradients(
    objective: Objective,
    forward: Callable[..., Any],
    w: Tensor,
    v: Tensor,
    b: Tensor,
    data: Any,
    blocks: Blocks = "both",
    refused: frozenset[Any] = NOTHING,
) -> Gradients:
    """Run ``forward`` and differentiate the summed losses, which gives every client its own gradient.

    Gradients are taken for views into the flat matrix, one for each parameter, never through slices of the matrix.

    Args:
        objective: The objective, which gives layouts and precision.
        forward: ``objective`` itself for one client, or a batched version of it.
        w: Points, ``[d]`` for one client or ``[S, d]``.
        v: Personal blocks, likewise.
        b: Buffers, likewise.
        data: One client's minibatch, or leaves ``[S, ...]``.
        blocks: The gradients to compute.
        refused: Functions that may not be called on the way back, by a backward pass written in Python or a hook.

    Raises:
        RuntimeError: If the loss depends on no trained parameter, although both blocks are asked for.
        ObjectiveError: If the backward pass reads the task's parameters or buffers.
    """
    space, autocast = objective.space, objective.autocast
    clients = len(w) if w.dim() == 2 else 1
    shared, personal, moved = leaves_at(objective, w, v, blocks)
    with torch.enable_grad():
        with autocast():
            loss, scalars, buffers = forward(shared, personal, space.buffers.views(b), data)
        total = loss.sum() if autocast.scale == 1 else loss.sum() * autocast.scale
    points = moved[0] + moved[1]
    names = [*(shared if moved[0] else ()), *(personal if moved[1] else ())]
    if blocks == "both" and not total.requires_grad:
        raise RuntimeError(
            "the loss does not depend on the parameters that are trained: it was detached, computed under no_grad or "
            "in NumPy, or from data alone. Compute it from self's parameters with torch"
        )
    found: Sequence[Tensor | None] = [None] * len(points)
    if total.requires_grad:  # a loss need not depend on every block
        try:
            with objective.going_back():
                found = _way_back(total, points, refused)
        except RuntimeError:
            _refuse_frozen(names, points)
            raise
    if missing := objective.rest.note(names, found):
        if is_checkpointed(total):
            raise reads_late(objective.name, "parameters")
        objective.rest.accept(missing)
    grads = tuple(_dense(point, gradient) for point, gradient in zip(points, found, strict=True))
    return Gradients(
        moved[0],
        grads[: len(moved[0])],
        grads[len(moved[0]) :],
        space.buffers.flatten([t.to(b.dtype) for t in buffers], clients) if buffers else b.reshape(clients, -1),
        loss.detach().reshape(clients),
        {name: value.reshape(clients) for name, value in scalars.items()},
    )


def _way_back(total: Tensor, points: Sequence[Tensor], refused: frozenset[Any]) -> Sequence[Tensor | None]:
    """Return the gradients of a loss at some points; None where it does not depend on one."""
    if not refused:
        return torch.autograd.grad(total, points, allow_unused=True)
    edges = [get_gradient_edge(point) for point in points]  # given tensors, the whole way back would go unwatched
    with Refused(refused):
        return torch.autograd.grad(get_gradient_edge(total), edges, torch.ones_like(total), allow_unused=True)


def _refuse_frozen(names: Sequence[str], points: Sequence[Tensor]) -> None:
    """Refuse parameters that the objective has frozen while it ran."""
    if frozen := next((name for name, point in zip(names, points, strict=True) if not point.requires_grad), None):
        raise RuntimeError(
            f"it froze parameter '{frozen}' (requires_grad_(False)) while it ran. What is trained is settled when a "
            "fit begins: freeze before the fit, or detach what the parameter computes"
        ) from None


def _dense(point: Tensor, gradient: Tensor | None) -> Tensor:
    if gradient is None:
        return torch.zeros_like(point)
    return gradient.to_dense() if gradient.is_sparse else gradient


def collected(
    objective: Objective, shared: Sequence[Tensor], personal: Sequence[Tensor], w: Tensor, num_clients: int
) -> tuple[Tensor, Tensor]:
    """Join gradients by parameter into the operator ``[S, d]`` and the personal gradient ``[S, p]``.

    Either is ``[S, 0]`` if no gradients are given for its block.

    Args:
        objective: The objective, which gives layouts and precision.
        shared: Gradients of the shared parameters, in the layout's order, scaled as ``objective.autocast`` says; may be
            empty.
        personal: Gradients of the personal parameters, likewise.
        w: Gives dtype and device.
        num_clients: S.
    """
    space, scale = objective.space, objective.autocast.scale
    g = space.shared.flatten(space.shared.to_operator(shared), num_clients) if shared else w.new_empty((num_clients, 0))
    g_personal = space.personal.flatten(personal, num_clients) if personal else w.new_empty((num_clients, 0))
    if scale != 1:
        g, g_personal = g / scale, g_personal / scale
    return g, g_personal


def apart(evaluation: Evaluation, *points: Tensor) -> Evaluation:
    """Return an evaluation with logged values copied where they lie in a point, which steps change: a weight, say."""
    places = [point.untyped_storage().data_ptr() for point in points]
    values = {"loss": evaluation.loss, **evaluation.scalars}
    copies = {name: each.clone() for name, each in values.items() if each.untyped_storage().data_ptr() in places}
    if not copies:
        return evaluation
    values |= copies
    return replace(evaluation, loss=values.pop("loss"), scalars=values)
