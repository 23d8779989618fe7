"""The comparison of an oracle with plain evaluation: the same steps of the same clients, by quantity."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from math import ceil, inf, isfinite, log2
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.memory import give_back_what_is_free
from fedlightning.core.tree import map_tensors
from fedlightning.oracle.base import ROUNDED_ALIKE, ClientBatching, Evaluate, Evaluation, StepsInPlace
from fedlightning.oracle.effects.side_effects import undone
from fedlightning.oracle.minibatch import Rows
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.python_generators import python_generators_restored
from fedlightning.oracle.randomness import Randomness
from fedlightning.oracle.sequential import Sequential
from fedlightning.oracle.vectorized import MIN_CALLS_TO_RECORD

STEPS = 3
"""The second step is the first that is replayed; the third shows what a replay leaves behind, and is taken in place."""

MOST = 0.02
"""Largest relative difference that counts as rounding by itself, however coarse the numbers."""

ROUNDINGS = 8
"""Ways in which points are rounded, to see how far plain evaluation moves."""

_Point = tuple[Tensor, Tensor, Tensor, Any, Randomness]
"""Points, personal blocks, buffers, a minibatch and random numbers of the sample's clients."""


@dataclass(frozen=True)
class Sample:
    """Holds the points and minibatches that a check evaluates.

    Attributes:
        w: Points of two clients (or one), ``[S, d]``.
        v: Their personal blocks, ``[S, p]``.
        b: Their buffers, ``[S, b]``.
        data: A minibatch for each of some consecutive steps, leaves ``[S, ...]``.
        ids: The clients. What vmap gets wrong, it often gets right for the first of them, so two are compared.
    """

    w: Tensor
    v: Tensor
    b: Tensor
    data: Sequence[Any]
    ids: Sequence[int] = (0, 1)

    def last(self) -> Sample:
        """Return the sample of the last client alone."""
        data = [map_tensors(lambda leaf: leaf[-1:], batch) for batch in self.data]
        return Sample(self.w[-1:], self.v[-1:], self.b[-1:], data, self.ids[-1:])


@dataclass(frozen=True)
class Tolerance:
    """Says how far two oracles may differ by rounding alone.

    Attributes:
        eps: Relative precision of the numbers that are computed with.
        relative: Part of a quantity's largest element.
        summed: Part of the largest of the numbers that the quantity was summed from.
    """

    eps: float
    relative: float
    summed: float

    @classmethod
    def of(cls, eps: float) -> Tolerance:
        """Return the tolerance of a computation in one precision: ``sqrt(eps)``, and some ``eps`` of the summed."""
        return cls(eps, min(eps**0.5, MOST), min(100 * eps, MOST))

    def at_least_of(self, dtype: torch.dtype) -> Tolerance:
        """Return the tolerance for a quantity whose dtype may be coarser than the rest of the computation."""
        coarser = dtype.is_floating_point and torch.finfo(dtype).eps > self.eps
        return Tolerance.of(torch.finfo(dtype).eps) if coarser else self


class Comparison:
    """Evaluates a sample plainly, and compares oracles with the result."""

    def __init__(self, objective: Objective, sample: Sample, steps: int = STEPS) -> None:
        """Evaluate the sample plainly, once for all comparisons.

        Args:
            objective: In the precision in which it is compared.
            sample: Where it is evaluated.
            steps: How many consecutive steps are taken.

        Raises:
            ObjectiveError: If the objective itself fails.
        """
        self._objective = objective
        self._ids = sample.ids
        self._device = sample.w.device
        self._sample = sample
        self._expected: list[Evaluation] = []
        self._moved: dict[tuple[int, float, int], list[float]] = {}
        with self._leaving_no_trace():
            evaluate = Sequential().evaluator(objective, STEPS)
            for point in self._points(steps):
                self._expected.append(_at(evaluate, point))

    @property
    def is_finite(self) -> bool:
        """Whether all losses and gradients of plain evaluation are finite."""
        tensors = [t for result in self._expected for t in (result.loss, result.g, result.g_personal)]
        return all(bool(tensor.isfinite().all()) for tensor in tensors)

    def watch(self, context: AbstractContextManager[Any]) -> None:
        """Evaluate the first step of the first client plainly once more, in a context that sees its operations."""
        w, v, b, data, randomness = next(self._points(1))
        first = Rows.at([0], self._device)
        with self._leaving_no_trace(), context:
            _at(Sequential().evaluator(self._objective, 1), (*first.of((w, v, b, data)), randomness.of(first.places)))

    def difference(self, oracle: ClientBatching, tolerance: Tolerance) -> str | None:
        """Describe in one line what differs between an oracle and plain evaluation, beyond rounding; None if nothing.

        Raises:
            BatchedError: If the objective cannot be evaluated for many clients at once.
        """
        suspects: list[tuple[int, Evaluation, str]] = []
        with self._leaving_no_trace():
            evaluate = oracle.evaluator(self._objective, MIN_CALLS_TO_RECORD)  # so that what may be replayed is
            for step, (point, expected) in enumerate(zip(self._points(), self._expected, strict=True)):
                results = [_at(evaluate, point)]
                if step == len(self._expected) - 1:
                    results += _stepped(evaluate, point, results[0].g)
                for found in results:
                    difference = self._first_difference(found, expected, tolerance)
                    if difference is not None:
                        suspects.append((step, found, difference))
                del results, found  # before the next step takes as much memory again
        for step, found, difference in suspects:
            if not self._is_rounding(step, found, tolerance):
                return f"{difference} at step {step + 1}"
        return None

    def _points(self, steps: int | None = None) -> Iterator[_Point]:
        """Yield the points of the sample, step after step; each follows from the gradient at its predecessor.

        They are made anew for every oracle, as those of a large model would fill the memory.
        """
        w, v, b = self._sample.w, self._sample.v, self._sample.b
        for step in range(len(self._expected) if steps is None else steps):
            data = self._sample.data[step % len(self._sample.data)]
            yield w, v, b, data, Randomness(range(len(w)), step)
            here = self._expected[step]
            w, v, b = _moved(w, here.g), _moved(v, here.g_personal), here.buffers

    def _first_difference(self, one: Evaluation, other: Evaluation, tolerance: Tolerance) -> str | None:
        """Describe the first quantity that differs by more than the tolerance; None if none does."""
        if one.scalars.keys() != other.scalars.keys():
            return f"the logged scalars are {sorted(one.scalars)} instead of {sorted(other.scalars)}"
        for what, mine, theirs, floor in _quantities(self._objective, one, other):
            excess = _excess(mine, theirs, floor, tolerance)
            if excess is not None:
                place, size = excess
                far = f"relatively by {size:.2g}" if isfinite(size) else "as it is zero or infinite there,"
                return f"{what} differs from evaluation one by one, {far} in client {self._ids[place]},"
        return None

    def _is_rounding(self, step: int, found: Evaluation, tolerance: Tolerance) -> bool:
        """Return whether plain evaluation itself moves as far when its points are rounded in another way.

        Several ways are tried, because one may miss the ReLU that lies at zero. Only if plain evaluation repeats
        exactly at equal points: else the objective depends on more than its arguments.
        """
        evaluate, expected = Sequential().evaluator(self._objective, STEPS), self._expected[step]
        with self._leaving_no_trace():
            for point in self._points(step + 1):
                again = _at(evaluate, point)
        for _, repeated, value, _ in _quantities(self._objective, again, expected):
            if not torch.equal(repeated.nan_to_num(), value.nan_to_num()):
                return False
        differences = list(_quantities(self._objective, found, expected))
        noise = [0.0] * len(differences)
        for way in range(ROUNDINGS):
            noise = list(map(max, noise, self._moves(step, tolerance.eps, way)))
            if not any(
                _excess(mine, value, floor, tolerance, 10 * most)
                for most, (_, mine, value, floor) in zip(noise, differences, strict=True)
            ):
                return True
        return False

    def _moves(self, step: int, eps: float, way: int) -> list[float]:
        """Return how far every quantity of plain evaluation moves when a step's points are rounded in one way."""
        if (step, eps, way) not in self._moved:
            evaluate = Sequential().evaluator(self._objective, STEPS)
            with self._leaving_no_trace():
                for point in self._points(step):
                    _at(evaluate, point)
                *_, (w, v, b, data, randomness) = self._points(step + 1)
                signs = torch.ones_like(w)
                signs[:, :: way + 2] = -1
                near = _at(evaluate, (w * (1 + eps * signs), v, b, data, randomness))
            pairs = _quantities(self._objective, near, self._expected[step])
            self._moved[step, eps, way] = [_largest_difference(one, other) for _, one, other, _ in pairs]
        return self._moved[step, eps, way]

    @contextmanager
    def _leaving_no_trace(self) -> Iterator[None]:
        """Put attributes and random generators back when the context ends; begin without what others have freed."""
        give_back_what_is_free()
        generators = torch.random.fork_rng(devices=[self._device] if self._device.type == "cuda" else [])
        with undone(self._objective.task), python_generators_restored(), generators:
            yield


def _at(evaluate: Evaluate, point: _Point) -> Evaluation:
    """Evaluate on a copy of the batch, which the objective may write into."""
    w, v, b, data, randomness = point
    return evaluate(w, v, b, map_tensors(torch.clone, data), "both", randomness)


def _stepped(evaluate: Evaluate, point: _Point, g: Tensor) -> Iterator[Evaluation]:
    """Yield the evaluation of a step in place, with the operator read off the step, if the oracle takes such steps.

    The step is so long that its start is lost in rounding, and not the operator ``g``.
    """
    w, v, b, data, randomness = point
    if not isinstance(evaluate, StepsInPlace) or w.dtype not in ROUNDED_ALIKE or not w.numel():
        return
    times = float(_largest(w.nan_to_num(0, 0, 0)).amax() / _largest(g.nan_to_num(0, 0, 0)).amax())
    lr = 2.0 ** (10 + (ceil(log2(times)) if 0 < times < inf else 0))
    after = w.clone()
    with evaluate.steps_in_place(after, v, "both", lr) as step:
        result = step(b, map_tensors(torch.clone, data), randomness)
    if result is not None:
        yield replace(result, g=torch.sub(w, after, out=after).div_(lr))


def _moved(w: Tensor, g: Tensor) -> Tensor:
    """Step down each client's gradient, by a hundredth of the point's length."""
    length = g.norm(dim=1, keepdim=True)
    step = 0.01 * w.norm(dim=1, keepdim=True) / torch.where(length > 0, length, 1.0)
    return torch.addcmul(w, step.nan_to_num_(0, 0, 0), g.nan_to_num(0, 0, 0), value=-1)


def _quantities(
    objective: Objective, one: Evaluation, other: Evaluation
) -> Iterator[tuple[str, Tensor, Tensor, Tensor | float]]:
    """Yield the name, both values ``[S, ...]`` and the absolute rounding of everything that is compared."""
    space = objective.space
    for layout, mine, theirs in (
        (space.shared, one.g, other.g),
        (space.personal, one.g_personal, other.g_personal),
    ):
        largest = _largest(theirs).nan_to_num(0, 0, 0) if theirs.shape[1] else 0.0
        views = layout.views(theirs)
        for name, value in layout.views(mine).items():
            yield f"the gradient of '{name}'", _flat(value), _flat(views[name]), largest
    yield "the loss", one.loss[:, None], other.loss[:, None], other.loss.abs().nan_to_num(0, 0, 0).clamp(min=1.0)
    buffers = space.buffers.views(other.buffers)
    for name, value in space.buffers.views(one.buffers).items():
        yield f"buffer '{name}'", _flat(value), _flat(buffers[name]), 1.0
    for name, value in one.scalars.items():
        yield f"the logged '{name}'", value[:, None], other.scalars[name][:, None], 1.0


def _flat(value: Tensor) -> Tensor:
    return value.reshape(len(value), -1)


def _largest_difference(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().amax().nan_to_num()) if one.numel() else 0.0


def _excess(
    mine: Tensor, theirs: Tensor, floor: Tensor | float, tolerance: Tolerance, noise: Tensor | float = 0.0
) -> tuple[int, float] | None:
    """Return the client in which two values ``[S, n]`` differ by more than rounding, and how far; None if none does.

    Args:
        mine: One.
        theirs: The other.
        floor: Size of the numbers that both were summed from, ``[S]``.
        tolerance: How far they may differ.
        noise: What rounding is known to change.
    """
    if not mine.shape[1]:
        return None
    tolerance = tolerance.at_least_of(theirs.dtype)
    difference, size = _difference_and_size(mine, theirs)
    beyond = difference - tolerance.relative * size - tolerance.summed * floor - noise
    place = int(beyond.argmax())
    if not beyond[place] > 0:
        return None
    return place, float(difference[place] / size[place])


def _difference_and_size(mine: Tensor, theirs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest difference of two values ``[S, n]`` and the largest finite element of the second, ``[S]``.

    NaN differs from any number and not from NaN, and so does infinity.
    """
    if not mine.dtype == theirs.dtype == torch.float32:
        mine, theirs = mine.double(), theirs.double()
    difference = _largest(mine - theirs)
    if difference.isfinite().all():  # the common case, in which all elements are finite
        return difference, _largest(theirs)
    mine, theirs = mine.double(), theirs.double()
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    difference = torch.where(same, 0.0, (mine - theirs).abs()).nan_to_num(torch.inf).amax(1)
    return difference, _largest(theirs.nan_to_num(0, 0, 0))


def _largest(value: Tensor) -> Tensor:
    """Return the largest absolute value of each row of ``[S, n]``, without a copy of all."""
    largest: Tensor = torch.linalg.vector_norm(value, inf, dim=1)
    return largest
