"""Replays side by side on threads, one processor each.

Several threads inside one operation on small tensors wait for each other most of the time. Replays share nothing that
they write, so that a thread can run all operations of its own clients. Clients that are too few to be divided have all
threads. Only replays go side by side: what records, or is called anew, changes the attributes of the task while it
runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import nullcontext
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fedlightning.oracle.recording.recording import Recording
from fedlightning.oracle.threads import exactly, limited, set_threads

SMALLEST_PART = 2
"""Clients that a thread computes at least, so that the check of an oracle on two clients finds what mixes them."""


def run(compute: Callable[[int], None], count: int, threads: int) -> None:
    """Call ``compute`` with 0, ..., count - 1, on threads with one processor each; a single call has all of them.

    The calling thread is one of them: a thread of its own takes memory of its own.
    """
    if threads == 1:
        for i in range(count):
            compute(i)
        return
    if count == 1:
        with exactly(threads):
            compute(0)
        return
    numbers = iter(range(count))

    def take_turns() -> None:
        for i in numbers:  # every number goes to one thread
            compute(i)

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
        with exactly(threads) if threads > 1 else nullcontext():
            return recording(*inputs)
    if any(recording.is_replayed(*(tensor[part] for tensor in inputs)) is False for part in parts):
        return recording(*inputs)
    room = torch.empty_like(inputs[0])
    found: list[Any] = [None] * count

    def compute(k: int) -> None:
        own = room[parts[k]]
        found[k] = (*recording(*(tensor[parts[k]] for tensor in inputs), room=own), own)

    known = all(recording.is_replayed(*(tensor[part] for tensor in inputs)) for part in parts)
    run(compute, count, threads if known else 1)
    results = [torch.cat(several) for several in zip(*(rest for (_, *rest), _, _ in found), strict=True)]
    in_place = all(first is own for (first, *_), _, own in found)
    whole = room if in_place else torch.cat([first for (first, *_), _, _ in found])
    return [whole, *results], found[0][1]


def stepped_in_parts(
    recording: Recording, inputs: tuple[Tensor, ...], threads: int, lr: float
) -> tuple[Sequence[Tensor], Any] | None:
    """Return what ``recording.step(*inputs, lr=lr)`` returns, with the clients divided among threads.

    Args:
        recording: As for :func:`replayed_in_parts`.
        inputs: Likewise; the first one is changed.
        threads: Largest number of parts.
        lr: Step size.

    Returns:
        None if the step cannot be replayed, and then nothing has changed.
    """
    each = [tuple(tensor[part] for tensor in inputs) for part in _parts(len(inputs[0]), threads)]
    if len(each) < 2:
        with exactly(threads):
            return recording.step(*inputs, lr=lr) if recording.can_step(*inputs) else None
    if not all(recording.can_step(*own) for own in each):
        return None
    found: list[Any] = [None] * len(each)

    def compute(k: int) -> None:
        found[k] = recording.step(*each[k], lr=lr)

    run(compute, len(each), threads)
    return [torch.cat(several) for several in zip(*(results for results, _ in found), strict=True)], found[0][1]


def _parts(num_clients: int, threads: int) -> list[slice]:
    """Return the clients of each thread; nothing if they are too few to be divided."""
    count = min(threads, num_clients // SMALLEST_PART)
    cuts = [num_clients * k // max(count, 1) for k in range(count + 1)]
    return [slice(*ends) for ends in pairwise(cuts)]
