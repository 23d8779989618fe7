"""One client after the other from a recording, several side by side on threads of their own.

Where a client's gradient keeps a processor busy by itself (recurrent and large networks), a batch of clients saves
nothing. What is left to save is the bookkeeping of Python and autograd: the operations of the first client's gradient
are recorded, and the gradients of all others are replays, on several threads side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.errors import UsageError
from fedlightning.core.tree import flatten, unflatten
from fedlightning.oracle.base import Blocks, Evaluate, Evaluation
from fedlightning.oracle.lone import of_one
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.randomness import NoiseOfOne, Randomness, generator_state
from fedlightning.oracle.recording import Recording
from fedlightning.oracle.side_by_side import run


def each(objective: Objective, threads: int) -> Evaluate:
    """Return a function that computes the operators of a chunk's clients from a recording of the first.

    Args:
        objective: The objective.
        threads: Clients that are computed side by side.
    """
    known: dict[Any, _OneClient] = {}
    noise = NoiseOfOne(expected=objective.draws is not False)

    def evaluate(
        w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both", randomness: Randomness | None = None
    ) -> Evaluation:
        leaves, structure = flatten(data)

        def inputs(i: int) -> list[Tensor]:
            return [tensor[i] for tensor in (w, v, b, *leaves)]

        alike = tuple((t.shape, t.stride(), t.dtype) for t in inputs(0))  # threads only replay what is recorded here
        key = structure, blocks, alike
        if key not in known:
            noise.begin(randomness, 0)
            first = [*inputs(0)[:3], *map(_copied, inputs(0)[3:])]  # client 0 is computed once more, on its own batch
            known[key] = _OneClient(objective, structure, blocks, first, noise)
        one = known[key]
        results = one.empty(len(w))

        def compute(i: int) -> None:
            noise.begin(randomness, i)
            one.compute(inputs(i), [result[i] for result in results])

        run(compute, len(w), threads)
        g, g_personal, buffers, loss, *scalars = results
        return Evaluation(g, g_personal, buffers, loss, dict(zip(one.names, scalars, strict=True)))

    return evaluate


class _OneClient:
    """Replays the evaluation of one client.

    Attributes:
        names: Of the scalars to log.
    """

    def __init__(
        self, objective: Objective, structure: Any, blocks: Blocks, inputs: Sequence[Tensor], noise: NoiseOfOne
    ) -> None:
        """Record the evaluation, whose random numbers come from ``noise``.

        Raises:
            RuntimeError: If a replay would be wrong.
        """

        def function(w: Tensor, v: Tensor, b: Tensor, *leaves: Tensor) -> tuple[list[Tensor], list[str]]:
            result = of_one(objective, w, v, b, unflatten(list(leaves), structure), blocks)
            return [result.g, result.g_personal, result.buffers, result.loss, *result.scalars.values()], [
                *result.scalars
            ]

        self._recording = Recording(function, noise)
        state = generator_state(inputs[0].device)
        results, self.names = self._recording(*inputs)
        self._results = [result[0].clone() for result in results]
        if not self._recording.replays:
            raise UsageError("the operations of one client cannot be recorded for the others")
        if not torch.equal(state, generator_state(inputs[0].device)):
            raise UsageError("it draws random numbers that no replay would draw anew")

    def empty(self, num_clients: int) -> list[Tensor]:
        """Return room for the results of S clients, ``[S, ...]`` each."""
        return [result.new_empty((num_clients, *result.shape)) for result in self._results]

    def compute(self, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Evaluate one client, and write its results into ``results``."""
        room = results[0][None]
        found, _ = self._recording(*inputs, room=room)
        for result, value in zip(results, found, strict=True):
            if value is not room:
                result.copy_(value[0])


def _copied(leaf: Tensor) -> Tensor:
    """Return a copy that lies in memory as the tensor does; the tensor itself where nothing can write into it."""
    copy = leaf.clone()
    return copy if copy.stride() == leaf.stride() else leaf
