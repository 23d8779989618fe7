"""The operators of a chunk of clients from a recording of the first step of a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fedlightning.core.tree import flatten, unflatten
from fedlightning.oracle.base import Blocks, Evaluation
from fedlightning.oracle.randomness import ClientNoise, Randomness
from fedlightning.oracle.recording import Recording
from fedlightning.oracle.side_by_side import replayed_in_parts, stepped_in_parts

Compute = Callable[[Tensor, Tensor, Tensor, Any, Blocks], Evaluation]
"""``(w [S, d], v [S, p], b [S, b], data, blocks)``: computes the operators of S clients, in operations on tensors."""


class Recorded:
    """Records the first evaluation of each kind, and replays it for those that follow."""

    def __init__(self, compute: Compute, noise: ClientNoise, threads: int) -> None:
        """Start without recordings.

        Args:
            compute: Computes the operators of S clients.
            noise: The clients' random numbers.
            threads: Threads that divide the clients of a replay among themselves.
        """
        self._compute, self._noise, self._threads = compute, noise, threads
        self._recordings: dict[Any, Recording] = {}

    def __call__(
        self, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both", randomness: Randomness | None = None
    ) -> Evaluation:
        """Compute operators; see :class:`~fedlightning.oracle.base.Evaluate`."""
        leaves, structure = flatten(data)
        if (structure, blocks) not in self._recordings:
            self._recordings[structure, blocks] = self._record(structure, blocks)
        recording = self._recordings[structure, blocks]
        return Evaluation.of_parts(*replayed_in_parts(recording, (w, v, b, *leaves), self._threads))

    def step(
        self, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks, randomness: Randomness | None, lr: float
    ) -> Evaluation | None:
        """Take a step in place; see :class:`~fedlightning.oracle.base.StepsInPlace`."""
        leaves, structure = flatten(data)
        recording = self._recordings.get((structure, blocks))
        if recording is None:
            return None
        found = stepped_in_parts(recording, (w, v, b, *leaves), self._threads, lr)
        return None if found is None else Evaluation.of_parts([w, *found[0]], found[1])

    def _record(self, structure: Any, blocks: Blocks) -> Recording:
        def function(w: Tensor, v: Tensor, b: Tensor, *leaves: Tensor) -> tuple[list[Tensor], list[str]]:
            return self._compute(w, v, b, unflatten(list(leaves), structure), blocks).parts()

        return Recording(function, self._noise)
