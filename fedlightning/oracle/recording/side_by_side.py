"""Replays side by side on threads, one processor each.

Several threads inside one operation on small tensors wait for each other most of the time. Replays share nothing that
they write, so that a thread can run all operations of its own clients. Clients that are too few to be divided have all
threads. Only replays go side by side: what records, or is called anew, changes the attributes of the task while it
runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from fedlightning.oracle.recording.course import Course, Returned
from fedlightning.oracle.recording.recording import Recording, key_of
from fedlightning.oracle.recording.waiting import Waiting, kept
from fedlightning.oracle.threads import limited, set_threads, up_to

SMALLEST_PART = 2
"""Clients that a thread computes at least, so that the check of an oracle on two clients finds what mixes them."""


def run(compute: Callable[[int], None], count: int, threads: int) -> None:
    """Call ``compute`` with 0, ..., count - 1, on threads with one processor each; a single call has all of PyTorch's.

    The calling thread is one of them: a thread of its own takes memory of its own.
    """
    if threads == 1:
        for i in range(count):
            compute(i)
        return
    if count == 1:
        with up_to(threads):
            compute(0)
        return
    numbers = iter(range(count))

    def take_turns() -> None:
        try:
            for i in numbers:  # every number goes to one thread
                compute(i)
        except BaseException:
            for _ in numbers:  # nothing is left for the others, who end with what they compute
                pass
            raise

    with limited(1):
        others = [_pool(threads - 1).submit(take_turns) for _ in range(min(threads, count) - 1)]
        try:
            take_turns()
        finally:
            wait(others)
    for other in others:
        other.result()


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "fedlightning", initializer=set_threads, initargs=(1,))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a forked process has the pools, but none of their threads


def replayed_in_parts(recording: Recording, inputs: Sequence[Tensor], threads: int) -> tuple[Sequence[Tensor], Any]:
    """Return what ``recording(*inputs)`` returns, with the clients divided among threads.

    Args:
        recording: Of a function that treats every client by itself: all its arguments and results are ``[S, ...]``,
            and its first result is as large as its first argument if it is large.
        inputs: Arguments of the function, at least one.
        threads: Largest number of parts.
    """
    parts = _parts(len(inputs[0]), threads)
    count = len(parts)
    if count < 2:
        with up_to(threads) if threads > 1 else nullcontext():
            return recording(*inputs)
    states = [recording.is_replayed(*(tensor[part] for tensor in inputs)) for part in parts]
    if False in states:
        with up_to(threads):
            return recording(*inputs)
    room = torch.empty_like(inputs[0])
    found: list[Any] = [None] * count

    def compute(k: int) -> None:
        own = room[parts[k]]
        found[k] = (*recording(*(tensor[parts[k]] for tensor in inputs), room=own), own)

    run(compute, count, threads if all(states) else 1)
    results = [torch.cat(several) for several in zip(*(rest for (_, *rest), _, _ in found), strict=True)]
    in_place = all(first is own for (first, *_), _, own in found)
    whole = room if in_place else torch.cat([first for (first, *_), _, _ in found])
    return [whole, *results], found[0][1]


class CourseInParts:
    """Takes steps from the points of clients who are divided among threads, as a course does from one point."""

    def __init__(self, point: Tensor, threads: int, lr: float, known: dict[Any, Returned]) -> None:
        """Begin.

        Args:
            point: The clients' points, ``[S, d]``.
            threads: Largest number of parts.
            lr: Step size.
            known: What those steps return that can be taken, by their kind; courses of one evaluator share it.
        """
        self._point, self._threads, self._parts = point, threads, _parts(len(point), threads)
        self._courses = [Course(point[part], lr) for part in self._parts]
        self._waiting: Waiting[_Step] = Waiting()
        self._known = known

    def step(
        self, recording: Recording, fixed: tuple[Tensor, ...], samples: Sequence[Tensor], may_wait: bool
    ) -> Returned | None:
        """Take a step, now or until the course is left, when its results are filled at the latest.

        Args:
            recording: Of the operator, as for :func:`replayed_in_parts`.
            fixed: Its arguments behind the points, which stay as they are.
            samples: Its other arguments.
            may_wait: Whether the step may be taken later.

        Returns:
            What the recorded function returns, without the operator; None if it cannot be replayed.
        """
        copies = kept(samples, laid_out_alike=True) if may_wait else None
        others = (*fixed, *(samples if copies is None else copies))
        kind = recording, key_of((self._point, *others))
        if kind not in self._known:
            self._take()
            if not self._can_step(recording, others):
                return None
            results, names = self._first(recording, others)
            self._known[kind] = [torch.empty_like(result, device="meta") for result in results], names
            return results, names
        like, names = self._known[kind]
        step = _Step(recording, others, [torch.empty_like(each, device=self._point.device) for each in like])
        if self._waiting.add(step, copies or ()) or copies is None:
            self._take()
        return step.results, names

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        with ExitStack() as stack:
            for course in self._courses:
                stack.enter_context(course)
            if kind is None:
                self._take()

    def _can_step(self, recording: Recording, others: tuple[Tensor, ...]) -> bool:
        inputs = (self._point, *others)
        with up_to(self._threads) if len(self._parts) == 1 else nullcontext():
            return all(recording.can_step(*[tensor[part] for tensor in inputs]) for part in self._parts)

    def _first(self, recording: Recording, others: tuple[Tensor, ...]) -> Returned:
        """Take the first step of its kind at once, which shows what the results are like."""
        found: list[Any] = [None] * len(self._parts)

        def compute(k: int) -> None:
            found[k] = self._courses[k].step(recording, tuple(tensor[self._parts[k]] for tensor in others))

        run(compute, len(self._parts), self._threads)
        return [torch.cat(several) for several in zip(*(results for results, _ in found), strict=True)], found[0][1]

    def _take(self) -> None:
        """Take all steps that wait."""
        steps = self._waiting.pop()

        def compute(k: int) -> None:
            for step in steps:
                step.take(self._courses[k], self._parts[k])

        if steps:
            run(compute, len(self._parts), self._threads)


@dataclass(frozen=True)
class _Step:
    """A step of all clients that is still to be taken.

    Attributes:
        recording: Of the operator.
        others: Its arguments but the points.
        results: Where its results go.
    """

    recording: Recording
    others: Sequence[Tensor]
    results: list[Tensor]

    def take(self, course: Course, part: slice) -> None:
        """Take the step of some clients from where their course has led so far."""
        taken = course.step(self.recording, tuple([tensor[part] for tensor in self.others]))
        assert taken is not None
        for result, value in zip(self.results, taken[0], strict=True):
            result[part].copy_(value)


def _parts(num_clients: int, threads: int) -> list[slice]:
    """Return the clients of each thread; all in one if they are too few to be divided."""
    count = max(min(threads, num_clients // SMALLEST_PART), 1)
    cuts = [num_clients * k // count for k in range(count + 1)]
    return [slice(*ends) for ends in pairwise(cuts)]
