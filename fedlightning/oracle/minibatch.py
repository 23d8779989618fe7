"""Minibatches of a chunk of clients, and for which of the clients they are computed."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from fedlightning.core.tree import map_tensors


@dataclass(frozen=True, eq=False)
class Rows:
    """Tells which rows of tensors ``[S, ...]`` are meant.

    Attributes:
        places: The rows, ascending.
        index: The same as a slice, for which nothing is copied, if they follow each other; else as a tensor.
    """

    places: Sequence[int]
    index: slice | Tensor

    @classmethod
    def at(cls, places: Sequence[int], device: torch.device) -> Rows:
        """Return the rows at ascending places, for tensors on ``device``."""
        whole = range(places[0], places[0] + len(places))
        follow = list(places) == list(whole)
        return cls(places, slice(whole.start, whole.stop) if follow else torch.tensor(places, device=device))

    def __len__(self) -> int:
        return len(self.places)

    def of(self, samples: Any) -> Any:
        """Return these rows of tensors in any structure, leaves ``[R, ...]``."""
        return map_tensors(lambda leaf: leaf[self.index], samples)


class Gather(Protocol):
    """The signature of functions that gather one minibatch of every client."""

    def __call__(self, rows: Rows | None = None) -> Any:
        """Return the samples of some clients, leaves ``[R, B, ...]``; of all, ``[S, B, ...]``, if ``rows`` is None."""


@dataclass(frozen=True)
class Minibatch:
    """Holds one minibatch of every client of a chunk, whose samples are gathered when they are first asked for.

    Attributes:
        gather: Gathers the samples.
        active: ``[S]`` bool, False for a client that has no more minibatches; None if all have.
        computed: The clients whose gradients are computed: all that are active, and perhaps others; None for all. The
            gradients of the rest are zero.
        includes_finished: Whether clients that have no more minibatches are among them.
    """

    gather: Gather
    active: Tensor | None = None
    computed: Rows | None = None
    includes_finished: bool = False

    @classmethod
    def of(cls, data: Any) -> Minibatch:
        """Return a minibatch of every client, with samples that are at hand."""
        return cls(lambda rows=None: data if rows is None else rows.of(data))

    @cached_property
    def data(self) -> Any:
        """Return the samples of all clients in the data set's structure, leaves ``[S, B, ...]``."""
        return self.gather()

    @cached_property
    def computed_data(self) -> Any:
        """Return the samples of the clients that are computed, leaves ``[R, B, ...]``."""
        return self.data if self.computed is None else self.gather(self.computed)

    def keep(self, new: Tensor, old: Tensor) -> Tensor:
        """Return ``new [S, ...]``, but ``old`` for clients that have no more minibatches."""
        return new if self.active is None else torch.where(self.active[:, None], new, old)


def restricted_to(going: Tensor, batch: Minibatch, leaves_out: bool) -> Minibatch:
    """Restrict a minibatch to those of its clients that are not done.

    Args:
        going: ``[S]`` bool, the clients that are not done.
        batch: A minibatch of every client.
        leaves_out: Whether others are left out, as :func:`few_places` says; else all are computed that were before.
    """
    active = going if batch.active is None else going & batch.active
    goes_on = active.tolist()
    if all(goes_on):
        return batch
    rows, before = batch.computed, len(goes_on) if batch.computed is None else len(batch.computed)
    places = few_places(goes_on, range(before) if rows is None else rows.places) if leaves_out and any(goes_on) else []
    if 0 < len(places) < before:
        rows = Rows.at(places, active.device)
    return Minibatch(batch.gather, active, rows, sum(goes_on) < (before if rows is None else len(rows)))


def few_places(needed: Sequence[bool], places: Sequence[int]) -> list[int]:
    """Return for which of S clients to compute something that not all need.

    Their number is S, or three quarters of that, or three quarters of those, and so on; clients that do not need it
    fill it up. So few numbers occur, each of which may cost a recording, and rows are not copied for one client less.

    Args:
        needed: For every client, whether it needs it; at least one does.
        places: The clients to choose from, ascending, among them all that need it.
    """
    least, number = sum(needed), len(needed)
    while number * 3 // 4 >= least:
        number = number * 3 // 4
    spare = min(number, len(places)) - least
    chosen = []
    for place in places:
        if needed[place] or spare > 0:
            spare -= not needed[place]
            chosen.append(place)
    return chosen


def computing_fewer(batches: Iterable[Minibatch], steps: Tensor, steps_to_pay_off: int) -> Iterator[Minibatch]:
    """Yield minibatches that are computed for the active clients, and for few others.

    Args:
        batches: The clients' minibatches.
        steps: ``[S]``, how many minibatches each client has.
        steps_to_pay_off: As for :func:`computed_together`.
    """
    at_step: list[tuple[Rows | None, bool]] = []
    for k, batch in enumerate(batches):
        if batch.active is None:
            yield batch
            continue
        at_step = at_step or _computed([int(count) for count in steps.tolist()], steps_to_pay_off, steps.device)
        rows, with_idle = at_step[k]
        yield Minibatch(batch.gather, batch.active, rows, with_idle)


def _computed(counts: Sequence[int], steps_to_pay_off: int, device: torch.device) -> list[tuple[Rows | None, bool]]:
    """Return for each step which clients are computed, None for all, and whether idle ones are among them."""
    longest_first = sorted(range(len(counts)), key=counts.__getitem__, reverse=True)
    numbers, active = (computed_together(counts, steps) for steps in (steps_to_pay_off, 1))
    rows = {number: Rows.at(sorted(longest_first[:number]), device) for number in set(numbers) if number < len(counts)}
    return [(rows.get(number), number > least) for number, least in zip(numbers, active, strict=True)]


def computed_together(counts: Sequence[int], steps_to_pay_off: int) -> list[int]:
    """Return how many clients are computed at each step: those that are active, and a few more to repeat few numbers.

    Args:
        counts: Number of steps of each client.
        steps_to_pay_off: Steps after which it has paid to compute another number of clients than before. If more than
            one, numbers come from halving the number of clients, and change only while as many steps are left.
    """
    ascending, numbers, number = sorted(counts), [], len(counts)
    for k in range(ascending[-1]):
        active = len(counts) - bisect_right(ascending, k)
        if steps_to_pay_off == 1:
            number = active
        elif ascending[-1] - k >= steps_to_pay_off:
            while (number + 1) // 2 >= active and number > 1:
                number = (number + 1) // 2
        numbers.append(number)
    return numbers
