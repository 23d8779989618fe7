"""One client after the other from a recording, several side by side on threads of their own.

Where a client's gradient keeps a processor busy by itself (recurrent and large networks), a batch of clients saves
nothing. What is left to save is the bookkeeping of Python and autograd: the operations of the first client's gradient
are recorded, and the gradients of all others are replays, on several threads side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.errors import UsageError
from fedlightning.core.tree import flatten, unflatten
from fedlightning.oracle.base import Blocks, Evaluation, StepInPlace, StepsInPlace
from fedlightning.oracle.errors import writes_into
from fedlightning.oracle.lone import of_one
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.randomness import NoiseOfOne, Randomness, generator_state
from fedlightning.oracle.recording.course import Course
from fedlightning.oracle.recording.recording import Recording
from fedlightning.oracle.recording.side_by_side import run
from fedlightning.oracle.recording.waiting import MOST_WAITING, Waiting, kept


class Each(StepsInPlace):
    """Computes the operators of a chunk's clients from a recording of the first."""

    most_waiting = MOST_WAITING

    def __init__(self, objective: Objective, threads: int) -> None:
        """Start without recordings.

        Args:
            objective: The objective.
            threads: Clients that are computed side by side.
        """
        self._objective = objective
        self._threads = threads
        self._known: dict[Any, _OneClient] = {}
        self._noise = NoiseOfOne(expected=objective.draws is not False)

    def __call__(
        self, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both", randomness: Randomness | None = None
    ) -> Evaluation:
        """Compute operators; see :class:`~fedlightning.oracle.base.Evaluate`."""
        one, inputs = self._of_each(w, v, b, data, blocks, randomness)
        results = one.empty(len(w))

        def client(i: int) -> None:
            self._noise.begin(randomness, i)
            one.compute(inputs[i], [result[i] for result in results])

        run(client, len(w), self._threads)
        return Evaluation.of_parts(results, one.names)

    @contextmanager
    def steps_in_place(self, w: Tensor, v: Tensor, blocks: Blocks, lr: float) -> Iterator[StepInPlace]:
        """Begin steps in place; see :class:`~fedlightning.oracle.base.StepsInPlace`.

        A thread takes several steps of a client in a row, if they may wait for each other.
        """
        waiting: Waiting[_Step] = Waiting()

        def take() -> None:
            steps = waiting.pop()

            def client(i: int) -> None:
                with Course(w[i], lr) as course:
                    for waited in steps:
                        self._noise.begin(waited.randomness, i)
                        waited.take(course, i)

            if steps:
                run(client, len(w), self._threads)

        def step(b: Tensor, data: Any, randomness: Randomness | None) -> Evaluation | None:
            leaves, structure = flatten(data)
            copies = None if b.numel() else kept(leaves)
            own = data if copies is None else unflatten(copies, structure)
            one, inputs = self._of_each(w, v, b, own, blocks, randomness)
            if not one.can_step(inputs[0]):
                return None
            results = one.empty(len(w), without_operator=True)
            if waiting.add(_Step(one, inputs, results, randomness), leaves) or copies is None:
                take()
            return Evaluation.of_parts([w, *results], one.names)

        yield step
        take()

    def _of_each(
        self, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks, randomness: Randomness | None
    ) -> tuple[_OneClient, list[tuple[Tensor, ...]]]:
        """Return what replays one client, and every client's inputs; the first of their kind are recorded."""
        leaves, structure = flatten(data)
        inputs = [*zip(w, v, b, *leaves, strict=True)]
        key = _key(inputs[0], structure, blocks)
        if key not in self._known:
            self._noise.begin(randomness, 0)
            first = [*map(_copied, inputs[0])]  # client 0 is computed once more, where it is and on its own batch
            versions = [t._version for t in first[:2]]
            self._known[key] = _OneClient(self._objective, structure, blocks, first, self._noise)
            if [t._version for t in first[:2]] != versions:
                raise writes_into(self._objective.name, None)
        return self._known[key], inputs


@dataclass(frozen=True)
class _Step:
    """A step of every client that is still to be taken.

    Attributes:
        one: Replays a client.
        inputs: Every client's arguments.
        results: Where all results but the operator go, ``[S, ...]`` each.
        randomness: The clients' random numbers.
    """

    one: _OneClient
    inputs: Sequence[tuple[Tensor, ...]]
    results: Sequence[Tensor]
    randomness: Randomness | None

    def take(self, course: Course, i: int) -> None:
        """Take the step of client i, from where its course has led so far."""
        self.one.step(course, self.inputs[i][1:], [result[i] for result in self.results])


def _key(one: Sequence[Tensor], structure: Any, blocks: Blocks) -> Any:
    """Return what evaluations must agree in to replay one another: threads only replay what was recorded before."""
    return structure, blocks, tuple((t.shape, t.stride(), t.dtype) for t in one)


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
            data = unflatten(list(leaves), structure)
            return of_one(objective, w, v, b, data, blocks, stands_for_others=True).parts()

        self._recording = Recording(function, noise)
        state = generator_state(inputs[0].device)
        results, self.names = self._recording(*inputs)
        self._results = [result[0].clone() for result in results]
        if not self._recording.replays:
            raise UsageError("the operations of one client cannot be recorded for the others")
        if not torch.equal(state, generator_state(inputs[0].device)):
            raise UsageError("it draws random numbers that no replay would draw anew")

    def empty(self, num_clients: int, without_operator: bool = False) -> list[Tensor]:
        """Return room for the results of S clients, ``[S, ...]`` each."""
        return [result.new_empty((num_clients, *result.shape)) for result in self._results[without_operator:]]

    def can_step(self, inputs: Sequence[Tensor]) -> bool:
        """Return whether :meth:`step` can be called with such inputs."""
        return self._recording.can_step(*inputs)

    def step(self, course: Course, others: tuple[Tensor, ...], results: Sequence[Tensor]) -> None:
        """Take a step, which must be possible, and write all results but the operator into ``results``.

        Args:
            course: Begins at the client's point.
            others: All arguments but the point.
            results: Room for the results.
        """
        taken = course.step(self._recording, others)
        assert taken is not None
        for result, value in zip(results, taken[0], strict=True):
            result.copy_(value[0])

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
