"""Runs of an algorithm's client update that do not count, and what its gradients are used for, which one run shows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlightning.algorithms.base import Reply
from fedlightning.algorithms.binding import in_round
from fedlightning.federation.client_states import StatesByField
from fedlightning.federation.clients.client_table import ClientTable
from fedlightning.federation.clients.client_update import Received, updated
from fedlightning.federation.protocol import Request
from fedlightning.federation.sampling.cohort import Chunk
from fedlightning.oracle.base import Blocks, Evaluate, Evaluation, StepInPlace, StepsInPlace
from fedlightning.oracle.effects.side_effects import undone
from fedlightning.oracle.evaluations import ClientData
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.oracle.minibatch import Minibatch
from fedlightning.oracle.python_generators import python_generators_restored, python_state
from fedlightning.oracle.randomness import Randomness

STEPS = 4
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
    counted, phase = _Counted(), table.algorithm.phases[request.stamp.phase]
    try:
        with suppress(Enough):
            rehearsed(table, chunk.ids, _FewMinibatches(chunk, STEPS * phase.draws), request, counted)
    except Exception:
        return UNKNOWN
    return sum(counted.in_place) / len(counted.in_place) if counted.in_place else UNKNOWN


class Rehearsal(NamedTuple):
    """Holds what a client update returned when it was run without a trace.

    Attributes:
        reply: The reply.
        oracle: What has counted.
        draws: Whether it drew from generators that all clients share.
        changed: Names of what it changed in Python, which has been put back.
    """

    reply: Reply
    oracle: GradientOracle
    draws: bool
    changed: Sequence[str]


def rehearsed(
    table: ClientTable,
    ids: Sequence[int],
    data: ClientData,
    request: Request,
    evaluate: Evaluate,
    states: StatesByField | None = None,
    seeds: Sequence[int] | None = None,
) -> Rehearsal:
    """Run the client update of a phase, and leave no trace; what it warns of is not said.

    Args:
        table: What the clients keep, which stays as it is.
        ids: Numbers of the clients.
        data: What stands for their data.
        request: What the server asks of them.
        evaluate: Computes operators.
        states: What they keep; None for what the table has.
        seeds: Seeds of the random numbers that they draw; None for their own.

    Raises:
        Exception: Whatever the algorithm raises.
    """
    asked = replace(request, message=Received(request.message).message)
    algorithm = in_round(table.algorithm, request.stamp.round)
    device = request.point.device
    generators = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with generators, python_generators_restored(), undone(table.task) as memory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = _generators(device)
        reply, oracle = updated(table, algorithm, asked, ids, data, evaluate, states=states, seeds=seeds)
        return Rehearsal(reply, oracle, _generators(device) != before, memory.changes())


def _generators(device: torch.device) -> list[Any]:
    """Return what tells whether anything was drawn from the generators that all clients share."""
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return [python_state(), *(bytes(state.numpy()) for state in states)]


class Enough(Exception):
    """Ends a rehearsal that takes too many gradients."""


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
            raise Enough
        self.in_place.append(in_place)


class _FewMinibatches:
    """Gives a few of clients' minibatches, and all of their data."""

    def __init__(self, data: ClientData, most: int) -> None:
        self._data, self._most = data, most
        self.steps = data.steps.clamp(max=most)

    def __len__(self) -> int:
        return len(self._data)

    def minibatches(self) -> Iterator[Minibatch]:
        return islice(self._data.minibatches(), self._most)

    def full(self) -> Iterator[tuple[Tensor, Any]]:
        return self._data.full()
