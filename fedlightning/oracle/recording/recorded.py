"""The operators of a chunk of clients from a recording of the first step of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fedlightning.core.tree import flatten, unflatten
from fedlightning.oracle.base import Blocks, Evaluation, StepInPlace, StepsInPlace
from fedlightning.oracle.randomness import ClientNoise, Randomness
from fedlightning.oracle.recording.course import Course, Returned
from fedlightning.oracle.recording.glance import Glance, GlanceAt, no_glance
from fedlightning.oracle.recording.known import KnownRecordings
from fedlightning.oracle.recording.recording import Recording
from fedlightning.oracle.recording.side_by_side import CourseInParts, replayed_in_parts
from fedlightning.oracle.recording.waiting import MOST_WAITING

Compute = Callable[[Tensor, Tensor, Tensor, Any, Blocks], Evaluation]
"""``(w [S, d], v [S, p], b [S, b], data, blocks)``: computes the operators of S clients, in operations on tensors."""


class Recorded(StepsInPlace):
    """Records the first evaluation of each kind, and replays it for those that follow."""

    def __init__(
        self,
        compute: Compute,
        noise: ClientNoise,
        threads: int,
        known: KnownRecordings | None = None,
        kind: Any = None,
        glance: GlanceAt = no_glance,
    ) -> None:
        """Start without recordings.

        Args:
            compute: Computes the operators of S clients.
            noise: The clients' random numbers.
            threads: Threads that divide the clients of a replay among themselves.
            known: Keeps recordings for other rounds; None to keep none.
            kind: Tells ``compute`` from others of which recordings are kept.
            glance: Shows in less time than ``compute`` that it would do what it did; by default nothing does.
        """
        self._compute, self._noise, self._threads, self._glance = compute, noise, threads, glance
        self._known, self._kind = None if known is None else known.begin(), kind
        self._recordings: dict[Any, Recording] = {}
        self._returned: dict[Any, Returned] = {}
        self.most_waiting = MOST_WAITING if threads > 1 else 0

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
        in_parts = self._threads > 1
        course = CourseInParts(w, self._threads, lr, self._returned) if in_parts else Course(w, lr)

        def step(b: Tensor, data: Any, randomness: Randomness | None) -> Evaluation | None:
            leaves, structure = flatten(data)
            recording = self._recordings.get((structure, blocks))
            if recording is None:
                return None
            if isinstance(course, Course):
                found = course.step(recording, (v, b, *leaves))
            else:
                found = course.step(recording, (v, b), leaves, may_wait=not b.numel())  # the next step reads buffers
            return None if found is None else Evaluation.of_parts([w, *found[0]], found[1])

        with course:
            yield step

    def _record(self, structure: Any, blocks: Blocks) -> Recording:
        compute, seen = self._compute, self._glance  # not this object, which would wait for the collector of cycles

        def function(w: Tensor, v: Tensor, b: Tensor, *leaves: Tensor) -> tuple[list[Tensor], list[str]]:
            return compute(w, v, b, unflatten(list(leaves), structure), blocks).parts()

        def glance(w: Tensor, v: Tensor, b: Tensor, *leaves: Tensor) -> Glance | None:
            return seen(w, v, b, unflatten(list(leaves), structure), blocks)

        return Recording(function, self._noise, self._known, (self._kind, structure, blocks), glance)
