"""What an algorithm's clients use their gradients for, found out without computing any."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.binding import in_round
from fedlightning.federation.clients.client_table import ClientTable
from fedlightning.federation.clients.client_update import Received, updated
from fedlightning.federation.protocol import Request
from fedlightning.federation.sampling.cohort import Chunk
from fedlightning.oracle.base import Blocks, Evaluation, StepInPlace, StepsInPlace
from fedlightning.oracle.effects.side_effects import undone
from fedlightning.oracle.evaluations import ClientData
from fedlightning.oracle.minibatch import Minibatch
from fedlightning.oracle.python_generators import python_generators_restored
from fedlightning.oracle.randomness import Randomness

MINIBATCHES = 4
"""Local steps that are rehearsed: the others are of the same kind."""

GRADIENTS = 64
"""Gradients after which a rehearsal ends: on zeros, a solver may never be done."""

UNKNOWN = 0.5
"""The share of an algorithm that fails on gradients of zero, or asks for none."""


def share_in_place(table: ClientTable, chunk: Chunk, request: Request) -> float:
    """Return which part of its gradients an algorithm uses for plain steps, which some oracles take in place.

    The client update of the first phase is run once for a few minibatches, on gradients of zero; a gradient on all data
    counts like one on a minibatch. An algorithm that fails counts as unknown: the round that follows says what is wrong
    with it, if anything is.

    Args:
        table: What the clients keep, which stays as it is.
        chunk: Clients whose data can be had again.
        request: What the server asks of the clients.
    """
    counted, asked = _Counted(), replace(request, message=Received(request.message).message)
    algorithm = in_round(table.algorithm, request.stamp.round)
    generators = torch.random.fork_rng(devices=[request.point.device] if request.point.is_cuda else [])
    with generators, python_generators_restored(), undone(table.task):
        try:
            with suppress(_Enough):
                updated(table, algorithm, asked, chunk.ids, _FewMinibatches(chunk), counted)
        except Exception:
            return UNKNOWN
    return sum(counted.in_place) / len(counted.in_place) if counted.in_place else UNKNOWN


class _Enough(Exception):
    """Ends a rehearsal."""


class _Counted(StepsInPlace):
    """Notes what it is asked for, and returns zeros.

    Attributes:
        in_place: For every gradient so far, whether it was that of a step in place.
    """

    def __init__(self) -> None:
        self.in_place: list[bool] = []

    def __call__(
        self, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both", randomness: Randomness | None = None
    ) -> Evaluation:
        self._note(False)
        return Evaluation(torch.zeros_like(w), torch.zeros_like(v), b, w.new_zeros(len(w)))

    @contextmanager
    def steps_in_place(self, w: Tensor, v: Tensor, blocks: Blocks, lr: float) -> Iterator[StepInPlace]:
        def step(b: Tensor, data: Any, randomness: Randomness | None) -> Evaluation:
            self._note(True)
            return Evaluation(w, torch.zeros_like(v), b, w.new_zeros(len(w)))

        yield step

    def _note(self, in_place: bool) -> None:
        if len(self.in_place) == GRADIENTS:
            raise _Enough
        self.in_place.append(in_place)


class _FewMinibatches:
    """Gives a few of clients' minibatches, and all of their data."""

    def __init__(self, data: ClientData) -> None:
        self._data = data
        self.steps = data.steps.clamp(max=MINIBATCHES)

    def __len__(self) -> int:
        return len(self._data)

    def minibatches(self) -> Iterator[Minibatch]:
        return islice(self._data.minibatches(), MINIBATCHES)

    def full(self) -> Iterator[tuple[Tensor, Any]]:
        return self._data.full()
