"""Processes that share a cohort, played by threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch


class Played:
    """One of several processes; what it gives the others lies in a list that all of them see."""

    def __init__(self, rank, slots, barrier):
        self.rank, self.count = rank, len(slots)
        self._slots, self._barrier = slots, barrier

    def collect(self, value):
        self._slots[self.rank] = value
        self._barrier.wait()
        values = list(self._slots)
        self._barrier.wait()
        return values

    def largest(self, value):
        return max(self.collect(value))

    def agree(self, value):
        return next((each for each in self.collect(value) if each is not None), None)

    def sum(self, tensor):
        return torch.stack(self.collect(tensor)).sum(dim=0)


def played(count, run):
    """Return ``run(processes)`` of every process, in the order of their ranks."""
    slots, barrier = [None] * count, Barrier(count, timeout=30)

    def one(rank):
        try:
            return run(Played(rank, slots, barrier))
        except BaseException:
            barrier.abort()  # the others would wait
            raise

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
