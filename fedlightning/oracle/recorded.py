"""The operators of a chunk of clients from a recording of the first step of a round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlightning.core.tree import flatten, unflatten
from fedlightning.oracle.base import Blocks, Evaluation
from fedlightning.oracle.program import Steps
from fedlightning.oracle.randomness import ClientNoise, Randomness
from fedlightning.oracle.recording import Recording, key_of
from fedlightning.oracle.side_by_side import replayed_in_parts, stepped_in_parts

Compute = Callable[[Tensor, Tensor, Tensor, Any, Blocks], Evaluation]
"""``(w [S, d], v [S, p], b [S, b], data, blocks)``: computes the operators of S clients, in operations on tensors."""


LARGE_POINTS = 2**23
"""Bytes of a chunk's points from which on views of them are not kept from step to step, which would keep the points."""


class _Course(NamedTuple):
    """Holds steps that have begun.

    Attributes:
        point: Where the clients are, ``[S, d]``.
        lr: Step size.
        kind: What minibatches, and the point's place in memory, must agree in to go on with these steps.
        steps: Takes the steps.
        names: Of the scalars to log.
    """

    point: Tensor
    lr: float
    kind: Any
    steps: Steps
    names: list[str]


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
        self._course: _Course | None = None

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
        others = (v, b, *leaves)
        if self._threads > 1 or w.numel() * w.element_size() > LARGE_POINTS:
            found = stepped_in_parts(recording, (w, *others), self._threads, lr)
            return None if found is None else Evaluation.of_parts([w, *found[0]], found[1])
        course, kind = self._course, (structure, blocks, w.data_ptr(), key_of((w, *others)))
        if course is None or course.point is not w or course.lr != lr or course.kind != kind:
            begun = recording.steps(w, *others, lr=lr)
            if begun is None:
                return None
            course = _Course(w, lr, kind, *begun)
        self._course = None  # a coroutine that raised cannot go on
        with torch.no_grad():
            rest = course.steps.send(others)
        self._course = course
        return Evaluation.of_parts([w, *rest], course.names)

    def _record(self, structure: Any, blocks: Blocks) -> Recording:
        def function(w: Tensor, v: Tensor, b: Tensor, *leaves: Tensor) -> tuple[list[Tensor], list[str]]:
            return self._compute(w, v, b, unflatten(list(leaves), structure), blocks).parts()

        return Recording(function, self._noise)
