"""How long a step of a round takes, measured as the round will run it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlightning.oracle.base import ClientBatching, StepsInPlace
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.randomness import Randomness
from fedlightning.oracle.vectorized import MIN_CALLS_TO_RECORD

STEP = 1e-8
"""Size of the steps that are timed: with 0, a product that is subtracted while it is computed would not be computed."""

ENOUGH = 0.05
"""Seconds after which steps of one kind are not repeated. The first calls, which record, do not count: the first replay
of a program is compiled, so that a way that is timed once seems slower than it is."""

TOO_SHORT, MORE_OFTEN = 0.01, 8
"""Trials of one kind that take fewer seconds in sum are repeated up to that many times as often: the first few steps of
a way are slower than the rest of a round, and a machine is seldom quiet for less."""

TICK = 1e-9
"""Seconds that a step takes at least, on clocks that are too coarse to tell."""

MOST_TOGETHER, SOME_TOGETHER = 32, 4
"""Steps in place that are begun together, as those of a round are: many if they are short, else up to four, or as many
as wait for each other, in :data:`LONG`. The first of them meet clients' points that have left the caches."""

LONG = 0.5
"""Seconds that steps take in sum where they are few, and up to which a first step is timed once more."""


class Arguments(NamedTuple):
    """Holds what gradients are tried on, and what they are used for.

    Attributes:
        w: Points, ``[S, d]``, which trials change a little.
        v: Personal blocks, ``[S, p]``.
        b: Buffers, ``[S, b]``.
        data: One minibatch of every client.
        in_place: Share of the algorithm's gradients that are plain steps, which some ways take in place.
    """

    w: Tensor
    v: Tensor
    b: Tensor
    data: Any
    in_place: float


def seconds_of_a_step(
    oracle: ClientBatching, objective: Objective, calls: int, arguments: Arguments, trials: int
) -> float:
    """Measure the time of one gradient of all clients with its step, recorded or not.

    Where a way can step in place, both are timed, operators and such steps, unless the algorithm uses one of them
    alone. The two shortest times count by their geometric mean, weighted by how often each is used.

    Args:
        oracle: The way that is tried.
        objective: What it differentiates.
        calls: Gradients of a round, which decide whether it records them.
        arguments: What the gradients are tried on.
        trials: Number of timed gradients; fewer where they take long, and more where they are short.

    Returns:
        The time in seconds; of a recorded oracle, with its share of the recording.
    """
    evaluate = oracle.evaluator(objective, calls)
    w, v, b, data, in_place = arguments
    half = (trials + 1) // 2

    def operator(randomness: Randomness) -> Tensor:
        return w.sub_(evaluate(w, v, b, data, "both", randomness).g, alpha=STEP)

    def timed(step: Callable[[Randomness], object], most: int) -> list[float]:
        times: list[float] = []
        while not times or (
            sum(times) < ENOUGH and len(times) < (most if sum(times) >= TOO_SHORT else MORE_OFTEN * most)
        ):
            times.append(_seconds(step, w, len(times))[0])
        return times

    def begin() -> float:
        """Take a first step as a round does: a recorded oracle's runs Python, a device's warms up."""
        if in_place == 1 and isinstance(evaluate, StepsInPlace):
            taken, result = _seconds(partial(_steps, evaluate, w, v, b, data, 1), w)
            if result is not None:
                return taken
        return _seconds(operator, w)[0]

    first = begin()
    if first < LONG or not objective.autocast.on_cpu:  # a device is warm now, and a recording kept for later rounds
        evaluate = oracle.evaluator(objective, calls)
        first = begin()
    made = [first]  # steps that take longer than all others of their kind
    found: list[tuple[float, float]] = []  # the shortest time of a kind, and how much it counts
    if in_place > 0 and isinstance(evaluate, StepsInPlace):
        steps = partial(_steps, evaluate, w, v, b, data)
        one, result = _seconds(partial(steps, 1), w)  # is compiled, or captured
        if result is not None:
            made += [] if objective.autocast.on_cpu else [one]
            count = _together(one, evaluate.most_waiting)
            placed = timed(partial(steps, count), trials if in_place == 1 else half)
            found.append((min(placed) / count, in_place))
    if not found or in_place < 1:
        made += [] if objective.autocast.on_cpu else [_seconds(operator, w)[0]]
        found.append((min(timed(operator, half if found else trials)), 1 - in_place if found else 1.0))
    if calls < MIN_CALLS_TO_RECORD:
        return min(first, *(taken for taken, _ in found))
    mean = math.exp(sum(counts * math.log(taken) for taken, counts in found))
    return mean + sum(max(taken - found[-1][0], 0.0) for taken in made) / calls


def _steps(
    evaluate: StepsInPlace, w: Tensor, v: Tensor, b: Tensor, data: Any, count: int, randomness: Randomness
) -> object:
    """Take steps in place, and return what the last one returns: None if they cannot be taken."""
    result: object = None
    with evaluate.steps_in_place(w, v, "both", STEP) as step:
        for _ in range(count):
            result = step(b, data, randomness)
    return result


def _together(one: float, waiting: int) -> int:
    """Return how many steps are begun together, if one takes ``one`` seconds, and so many wait for each other."""
    some = max(SOME_TOGETHER, waiting)
    return max(1, min(MOST_TOGETHER, int(2 * ENOUGH / one)), min(some, int(LONG / one)))


def _seconds(step: Callable[[Randomness], object], w: Tensor, call: int = 0) -> tuple[float, object]:
    """Return the seconds of a step of all clients, whose points are ``w``, ``[S, d]``, and what the step returns."""
    randomness = Randomness(range(len(w)), call)
    _synchronize(w)
    start = time.perf_counter()
    result = step(randomness)
    _synchronize(w)
    return max(time.perf_counter() - start, TICK), result


def _synchronize(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
