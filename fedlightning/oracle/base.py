"""The contract of oracles, which compute the operators of a cohort."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from fedlightning.oracle.effects.graph import is_checkpointed
from fedlightning.oracle.errors import reads_late
from fedlightning.oracle.minibatch import Rows
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.randomness import Randomness


@dataclass(frozen=True)
class Evaluation:
    """Holds the operators of S clients at their own points, with losses, scalars and new buffers.

    Attributes:
        g: Operator in the shared block, ``[S, d]``, in the parameters' dtype; ``[S, 0]`` if not asked for.
        g_personal: Gradient in the personal block, ``[S, p]`` (p may be 0); ``[S, 0]`` if not asked for.
        buffers: New values of the buffers that the objective changes, ``[S, b]`` (b may be 0).
        loss: Values of the objectives f_i, ``[S]``.
        scalars: Further values of the objective to log, each ``[S]``.
    """

    g: Tensor
    g_personal: Tensor
    buffers: Tensor
    loss: Tensor
    scalars: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of_parts(cls, parts: Sequence[Tensor], names: Sequence[str]) -> Evaluation:
        """Return the evaluation whose :meth:`parts` are given."""
        g, g_personal, buffers, loss, *scalars = parts
        return cls(g, g_personal, buffers, loss, dict(zip(names, scalars, strict=True)))

    def parts(self) -> tuple[list[Tensor], list[str]]:
        """Return all tensors, the operator first, and the names of the scalars, which come last."""
        return [self.g, self.g_personal, self.buffers, self.loss, *self.scalars.values()], [*self.scalars]

    def among(self, rows: Rows, num_clients: int) -> Evaluation:
        """Return the evaluation as that of some among S clients; the others have zeros.

        Args:
            rows: The evaluated clients.
            num_clients: S.
        """

        def wide(values: Tensor) -> Tensor:
            whole = values.new_zeros((num_clients, *values.shape[1:]))
            whole[rows.index] = values
            return whole

        scalars = {name: wide(values) for name, values in self.scalars.items()}
        return Evaluation(wide(self.g), wide(self.g_personal), wide(self.buffers), wide(self.loss), scalars)


Blocks = Literal["both", "shared", "personal"]
"""The gradients to compute. The backward pass leaves out whatever only the other block needs."""


class Evaluate(Protocol):
    """The signature of functions that compute operators."""

    def __call__(
        self,
        w: Tensor,
        v: Tensor,
        b: Tensor,
        data: Any,
        blocks: Blocks = "both",
        randomness: Randomness | None = None,
    ) -> Evaluation:
        """Compute the operators of S clients.

        Args:
            w: Points, ``[S, d]``.
            v: Personal blocks, ``[S, p]``.
            b: Buffers, ``[S, b]``.
            data: One minibatch of every client, with leaves ``[S, ...]``.
            blocks: The gradients to compute.
            randomness: Seeds of each client's random numbers; None to draw from the default generators as they are.
        """


ROUNDED_ALIKE = (torch.float32, torch.float64)
"""Dtypes in which a subtraction has the same bits in a part as in the whole: with 16-bit numbers, torch rounds the step
size where a row ends."""


StepInPlace = Callable[[Tensor, Any, Randomness | None], Evaluation | None]
"""``(b [S, b], data, randomness)``: takes a step, and returns the evaluation with the points in place of the operators;
or returns None if the step cannot be taken in place, and then nothing has changed. The step may wait until the context
is left: tensors of the evaluation are filled then, and errors may come then. Samples may be changed after the call."""


class StepsInPlace(ABC):
    """Computes operators and steps along them, without putting together what is used up at once.

    Attributes:
        most_waiting: Steps that wait for each other at most.
    """

    most_waiting: int = 0

    @abstractmethod
    def steps_in_place(self, w: Tensor, v: Tensor, blocks: Blocks, lr: float) -> AbstractContextManager[StepInPlace]:
        """Begin steps ``w <- w - lr * operator``, which agree with the two operations in turn up to rounding.

        Args:
            w: Points, ``[S, d]``, in memory of their own. They hold the new points once the context is left, and are
                neither read nor changed by anybody else before.
            v: Personal blocks, ``[S, p]``, which stay where they are.
            blocks: The gradients to compute.
            lr: Step size.

        Returns:
            A context with the function that takes each step.
        """


class PrefersFixedSize:
    """Computes operators, and pays for every other number of clients at once, by a recording or by copied rows.

    Attributes:
        steps_to_pay_off: After how many steps it has paid to compute another number of clients than before.
        leaves_out_done: Whether it pays to leave out clients once they are done, at steps that nobody can foresee.
    """

    steps_to_pay_off: int
    leaves_out_done: bool


Move = Callable[[Tensor, Tensor], Tensor]
"""``(w [S, d], g [S, d]) -> [S, d]``: maps clients' points and operators to new points; w stays as it is."""


@dataclass(frozen=True)
class Cost:
    """Says how much memory one client's gradient takes.

    Attributes:
        dim: Number of parameters, shared and personal.
        itemsize: Bytes per parameter.
        activation_bytes: Bytes that autograd keeps between forward and backward pass of one minibatch.
        free_bytes: Bytes that may be used on the device; None on a CPU, where the caches limit earlier.
    """

    dim: int
    itemsize: int
    activation_bytes: int
    free_bytes: int | None = None


class ClientBatching(ABC):
    """Computes the operators of a cohort, all at once or client by client.

    All oracles agree up to rounding. They differ in speed, in memory and in what they allow the objective to do.

    Attributes:
        threads: Number of threads of this process that compute a round; None for as many as PyTorch takes.
    """

    threads: int | None = None

    def threads_inside(self, objective: Objective) -> int | None:
        """Return the number of threads inside one operation; None for as many as PyTorch takes."""
        return self.threads

    @property
    def at_a_time(self) -> int:
        """Return how many clients of a chunk are computed at a time: chunks of a multiple of them keep all threads."""
        return 1

    @abstractmethod
    def chunk(self, cost: Cost) -> int:
        """Return the number of clients that are computed together."""

    @abstractmethod
    def evaluator(self, objective: Objective, calls: int) -> Evaluate:
        """Return the function that computes operators for the chunks of one round.

        Args:
            objective: The task's objective.
            calls: Approximate number of calls of the function.
        """


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
) -> Evaluation:
    """Return the operators that :func:`gradients` finds, joined; the arguments are the same."""
    return gradients(objective, forward, w, v, b, data, blocks).joined(objective, w)


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
                found = torch.autograd.grad(total, points, allow_unused=True)
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
