"""Search for the best number of threads and chunk size of one way of computing gradients, by timing it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch

from fedlightning.core.memory import give_back_what_is_free
from fedlightning.oracle.base import ClientBatching
from fedlightning.oracle.errors import is_out_of_memory
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.sequential import Sequential
from fedlightning.oracle.threads import limited
from fedlightning.oracle.timing import Arguments
from fedlightning.oracle.vectorized import Vectorized

WORTH_A_CHANGE = 0.9
"""More threads or smaller chunks must save at least a tenth of the time: on a busy machine, threads that wait for each
other cost far more."""

WORTH_PARTS = 0.95
"""Clients divided among threads must save a twentieth: their steps wait for each other, so that threads seldom do."""

SHORTEST_DIVIDED = 5e-4
"""Steps of fewer seconds are not divided: threads take turns at the interpreter, where such steps spend their time."""

WORTH_MORE_CLIENTS = 0.95
"""Larger chunks must save a twentieth of the time, for the memory that they take; fewer also cost less to begin."""

SMALLEST_HALVED = 2
"""Chunks of two clients are not cut further; what is left is to replay them one by one."""

Threaded = TypeVar("Threaded", Sequential, Vectorized)


class Load(Protocol):
    """The signature of functions that give arguments of an evaluator."""

    def __call__(self, size: int, at_a_time: int = 1) -> Arguments:
        """Return arguments for chunks of at most ``size`` clients, ``at_a_time`` of them at a time."""


@dataclass(frozen=True)
class Tuning:
    """Finds the fastest form of a way to compute one round's gradients; times are seconds for one client's gradient.

    Attributes:
        seconds: Measures the time of one gradient of all clients; see :meth:`fedlightning.oracle.Auto.seconds`.
        objective: What is differentiated.
        calls: Maps a number of clients computed together to the number of their gradients in a round.
        load: Gives arguments for as many clients as chunks of the cohort have.
        larger: Larger chunks than a way's own that may be tried, the smallest first.
    """

    seconds: Callable[[ClientBatching, Objective, int, Arguments], float]
    objective: Objective
    calls: Callable[[int], int]
    load: Load
    larger: Sequence[int]

    def threaded(self, way: Threaded) -> tuple[Threaded, float]:
        """Return a way with its best number of threads, and its time."""
        most, arguments = torch.get_num_threads(), self._arguments_of(way)
        if most == 1 or not self.objective.autocast.on_cpu:
            return way, self._taken(way, arguments)
        chosen, best = way, float("inf")
        for threads in _doubling(most):
            candidate = replace(way, threads=threads)
            taken = self._if_faster(candidate, best, WORTH_A_CHANGE, arguments)
            if taken is None:
                break
            chosen, best = candidate, taken
        return chosen, best

    def in_chunks(self, way: Vectorized) -> tuple[Vectorized, float]:
        """Return a batched way with its best number of threads and chunk size, and its time."""
        chosen, best = self.threaded(way)
        if not self.objective.autocast.on_cpu:
            return chosen, best
        grown, best = self._grown(chosen, best)
        divided = self._divided(grown, best)
        if divided is not None:
            chosen, best = divided
            grown, best = self._grown(chosen, best)
        if grown != chosen:
            return grown, best
        return self._resized(chosen, best, _halves(_size(chosen)), WORTH_A_CHANGE)

    def if_it_fits(self, way: Vectorized) -> float | None:
        """Return the time of a way; None if its chunks do not fit into memory, although those of other ways do."""
        try:
            with limited(way.threads_inside(self.objective)):
                return self._taken(way, self._arguments_of(way))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return None

    def _grown(self, way: Vectorized, best: float) -> tuple[Vectorized, float]:
        """Return the way with larger chunks while these are faster, and its time."""
        larger = [each for each in self.larger if each > _size(way)]
        if larger:  # a disturbed trial, which all others are compared with, would let chunks grow
            with limited(way.threads_inside(self.objective)):
                best = min(best, self._taken(way, self._arguments_of(way)))
        return self._resized(way, best, larger, WORTH_MORE_CLIENTS)

    def _resized(self, way: Vectorized, best: float, sizes: Iterable[int], worth: float) -> tuple[Vectorized, float]:
        """Return the way with one chunk size after the other, up to the first that is not worth it, and its time."""
        for size in sizes:
            candidate = replace(way, chunk_size=size)
            taken = self._if_faster(candidate, best, worth, self._arguments_of(candidate))
            if taken is None:
                break
            way, best = candidate, taken
        return way, best

    def _divided(self, way: Vectorized, best: float) -> tuple[Vectorized, float] | None:
        """Return the way with its clients divided among all threads, each part as large as a chunk, if it is faster."""
        most, size = torch.get_num_threads(), _size(way)
        if most == 1 or size * best < SHORTEST_DIVIDED or not way.can_be_divided(self.objective):
            return None
        together = max([size, *(each for each in self.larger if each <= most * size)])
        candidate = replace(way, threads=None, parts=most, chunk_size=together)
        taken = self._if_faster(candidate, best, WORTH_PARTS, self._arguments_of(candidate))
        return None if taken is None else (candidate, taken)

    def _if_faster(
        self, candidate: Sequential | Vectorized, best: float, worth: float, arguments: Arguments
    ) -> float | None:
        """Return the time of a candidate where a change is worth it; None where it is not.

        Who loses is timed once more, because other work on the machine can spoil a trial of a few milliseconds, and a
        whole run would keep the slower way.
        """
        for _ in range(2):
            with limited(candidate.threads_inside(self.objective)):
                taken = self._taken(candidate, arguments)
            if taken <= worth * best:
                return taken
        return None

    def _arguments_of(self, way: Sequential | Vectorized) -> Arguments:
        """Return what a way is tried on."""
        return self.load(_size(way), way.at_a_time)

    def _taken(self, way: Sequential | Vectorized, arguments: Arguments) -> float:
        """Return the time of a way, tried in memory that other ways have left to the system."""
        give_back_what_is_free()
        return self.seconds(way, self.objective, self.calls(_size(way)), arguments) / len(arguments.w)


def _size(way: Sequential | Vectorized) -> int:
    """Return how many clients a way computes together, which must be fixed."""
    size = way.chunk_size if isinstance(way, Vectorized) else 1
    assert size is not None
    return size


def _halves(size: int) -> Iterator[int]:
    """Yield half of a chunk, half of that, and so on."""
    while size > SMALLEST_HALVED:
        size = (size + 1) // 2
        yield size


def _doubling(most: int) -> Sequence[int]:
    """Return 1, 2, 4, ... and ``most``."""
    return [*(2**k for k in range(most.bit_length()) if 2**k < most), most]
