"""The contract of oracles, which compute the operators of a cohort."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

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
