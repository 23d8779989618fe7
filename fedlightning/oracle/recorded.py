"""The operators of a chunk of clients from a recording of the first step of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.tree import flatten, unflatten
from fedlightning.oracle.base import Blocks, Evaluation, StepInPlace
from fedlightning.oracle.known import KnownRecordings
from fedlightning.oracle.program import Steps
from fedlightning.oracle.randomness import ClientNoise, Randomness
from fedlightning.oracle.recording import Recording, key_of
from fedlightning.oracle.side_by_side import replayed_in_parts, stepped_in_parts

Compute = Callable[[Tensor, Tensor, Tensor, Any, Blocks], Evaluation]
"""``(w [S, d], v [S, p], b [S, b], data, blocks)``: computes the operators of S clients, in operations on tensors."""


class Recorded:
    """Records the first evaluation of each kind, and replays it for those that follow."""

    def __init__(
        self, compute: Compute, noise: ClientNoise, threads: int, known: KnownRecordings | None = None, kind: Any = None
    ) -> None:
        """Start without recordings.

        Args:
            compute: Computes the operators of S clients.
            noise: The clients' random numbers.
            threads: Threads that divide the clients of a replay among themselves.
            known: Keeps recordings for other rounds; None to keep none.
            kind: Tells ``compute`` from others of which recordings are kept.
        """
        self._compute, self._noise, self._threads = compute, noise, threads
        self._known, self._kind = None if known is None else known.begin(), kind
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

    @contextmanager
    def steps_in_place(self, w: Tensor, v: Tensor, blocks: Blocks, lr: float) -> Iterator[StepInPlace]:
        """Begin steps in place; see :class:`~fedlightning.oracle.base.StepsInPlace`."""
        course = _Course(w, lr)

        def step(b: Tensor, data: Any, randomness: Randomness | None) -> Evaluation | None:
            leaves, structure = flatten(data)
            recording, others = self._recordings.get((structure, blocks)), (v, b, *leaves)
            if recording is None:
                return None
            if self._threads > 1:
                found = stepped_in_parts(recording, (w, *others), self._threads, lr)
            else:
                found = course.step(recording, others)
            return None if found is None else Evaluation.of_parts([w, *found[0]], found[1])

        with closing(course):
            yield step

    def _record(self, structure: Any, blocks: Blocks) -> Recording:
        def function(w: Tensor, v: Tensor, b: Tensor, *leaves: Tensor) -> tuple[list[Tensor], list[str]]:
            return self._compute(w, v, b, unflatten(list(leaves), structure), blocks).parts()

        return Recording(function, self._noise, self._known, (self._kind, structure, blocks))


class _Course:
    """Takes steps from one point, and goes on with the same replay while minibatches are alike."""

    def __init__(self, point: Tensor, lr: float) -> None:
        """Begin at ``point``, ``[S, d]``, with steps of size ``lr``."""
        self._point, self._lr = point, lr
        self._steps: Steps | None = None
        self._names: list[str] = []
        self._kind: Any = None

    def step(self, recording: Recording, others: tuple[Tensor, ...]) -> tuple[list[Tensor], list[str]] | None:
        """Take a step.

        Args:
            recording: Of the operator.
            others: Its arguments but the point.

        Returns:
            Its results but the first, and the names of scalars; None if it cannot be replayed.
        """
        kind = recording, key_of(others)
        if self._steps is None or self._kind != kind:
            self.close()
            begun = recording.steps(self._point, *others, lr=self._lr)
            if begun is None:
                return None
            (self._steps, self._names), self._kind = begun, kind
        with torch.no_grad():
            return self._steps.send(others), self._names

    def close(self) -> None:
        """Bring the point up to date."""
        if self._steps is not None:
            self._steps.close()
        self._steps = None
