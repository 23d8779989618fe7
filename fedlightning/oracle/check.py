"""What is fast is checked against what is plain: a batched oracle beside evaluation client by client.

The check takes a few consecutive steps of two clients that lie apart in their cohort, on the real model and data and
with equal random numbers, and compares gradients, losses, buffers and logged scalars. The tolerance follows from the
precision of the computation: ``sqrt(eps)`` of a quantity and some ``eps`` of the numbers it was summed from, at most
two per cent. Whatever differs by more is excused only if plain evaluation itself moves about as far when its point is
rounded differently.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedlightning.core.tree import map_tensors
from fedlightning.oracle.base import ClientBatching, Evaluate, Evaluation
from fedlightning.oracle.objective import BatchedError, Objective
from fedlightning.oracle.randomness import Randomness, python_generators_restored
from fedlightning.oracle.sequential import Sequential
from fedlightning.oracle.side_effects import undone
from fedlightning.oracle.vectorized import MIN_CALLS_TO_RECORD, Vectorized, is_slow

STEPS = 3
"""The second step is the first that is replayed; the third shows what a replay leaves behind."""

TF32_EPS = 2.0**-10

MOST = 0.02
"""Largest relative difference that counts as rounding by itself, however coarse the numbers."""


@dataclass(frozen=True)
class Sample:
    """What a check evaluates.

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


class Checked(Protocol):
    """What a check says of a way to compute: nothing, or what is wrong with it."""

    def __call__(self, oracle: ClientBatching) -> str | None:
        """One line, None if it agrees with plain evaluation."""


class SelfCheck:
    """Compares ways to compute the operators of two clients with plain evaluation one by one."""

    def __init__(self, objective: Objective, sample: Sample) -> None:
        """Evaluate the sample plainly, once for all comparisons.

        Raises:
            ObjectiveError: If the objective itself fails.
        """
        self._objective = objective
        self._ids = sample.ids
        self._device = sample.w.device
        self._points: list[tuple[Tensor, Tensor, Tensor, Any, Randomness]] = []
        self._expected: list[Evaluation] = []
        w, v, b = sample.w, sample.v, sample.b
        with self._leaving_no_trace():
            evaluate = Sequential().evaluator(objective, STEPS)
            for step in range(STEPS):
                data = sample.data[step % len(sample.data)]
                point = (w, v, b, data, Randomness(range(len(w)), step))
                result = _at(evaluate, point)
                self._points.append(point)
                self._expected.append(result)
                w, v, b = _moved(w, result.g), _moved(v, result.g_personal), result.buffers

    def __call__(self, oracle: ClientBatching) -> str | None:
        """What differs between ``oracle`` and plain evaluation, in one line; None if nothing does."""
        calls = MIN_CALLS_TO_RECORD  # so that what may be replayed is
        with self._leaving_no_trace(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            evaluate = oracle.evaluator(self._objective, calls)
            try:
                found = [_at(evaluate, point) for point in self._points]
            except BatchedError as error:
                return str(error).splitlines()[0]
        if isinstance(oracle, Vectorized) and oracle.backward == "autograd" and any(map(is_slow, caught)):
            return "vmap would run a part of the objective client by client"
        for step, (one, other) in enumerate(zip(found, self._expected, strict=True)):
            difference = self._difference(one, other)
            if difference is not None and not self._is_rounding(step, one):
                return f"{difference} at step {step + 1}"
        return None

    def _leaving_no_trace(self) -> AbstractContextManager[None]:
        return _leaving_no_trace(self._objective.task, self._device)

    def _difference(self, one: Evaluation, other: Evaluation) -> str | None:
        """The first quantity that differs by more than rounding."""
        if one.scalars.keys() != other.scalars.keys():
            return f"the logged scalars are {sorted(one.scalars)} instead of {sorted(other.scalars)}"
        for what, mine, theirs, floor in _quantities(self._objective, one, other):
            excess = _excess(mine, theirs, floor, self._eps)
            if excess is not None:
                place, size = excess
                far = f"relatively by {size:.2g}" if isfinite(size) else "as it is zero or infinite there,"
                return f"{what} differs from evaluation one by one, {far} in client {self._ids[place]},"
        return None

    @property
    def _eps(self) -> float:
        """Relative precision of the computation."""
        dtype = self._objective.autocast.dtype or self._objective.dtype
        eps = torch.finfo(dtype).eps
        if self._device.type == "cuda" and dtype == torch.float32:
            coarse = torch.backends.cudnn.allow_tf32 or torch.backends.cuda.matmul.allow_tf32
            return max(eps, TF32_EPS) if coarse else eps
        return eps

    def _is_rounding(self, step: int, found: Evaluation) -> bool:
        """Whether plain evaluation itself moves as far when its points are rounded differently.

        Only if it repeats exactly at equal points: else the objective depends on more than its arguments.
        """
        w, v, b, data, randomness = self._points[step]
        evaluate = Sequential().evaluator(self._objective, STEPS)
        with self._leaving_no_trace():
            again = [_at(evaluate, point) for point in self._points[: step + 1]][-1]
        with self._leaving_no_trace():
            for point in self._points[:step]:
                _at(evaluate, point)
            signs = torch.ones_like(w)
            signs[:, ::2] = -1
            rounded = _at(evaluate, (w * (1 + self._eps * signs), v, b, data, randomness))
        expected = self._expected[step]
        pairs = zip(
            _quantities(self._objective, again, expected),
            _quantities(self._objective, rounded, expected),
            _quantities(self._objective, found, expected),
            strict=True,
        )
        for (_, repeated, value, _), (_, near, _, _), (_, mine, _, floor) in pairs:
            if not torch.equal(repeated.nan_to_num(), value.nan_to_num()):
                return False
            noise = 10 * (near - value).abs().amax().nan_to_num() if near.numel() else 0.0
            if _excess(mine, value, floor, self._eps, noise) is not None:
                return False
        return True


def fastest_that_agrees(oracle: Vectorized, on_cpu: bool, check: Checked) -> tuple[Vectorized | Sequential, str | None]:
    """The first of the oracle's ways that agrees with plain evaluation, else plain evaluation itself.

    Args:
        oracle: Where to begin.
        on_cpu: Whether the objective runs on a CPU.
        check: What is wrong with a way.

    Returns:
        The way, and one line that says what was wrong with the fastest if that was given up.
    """
    first: str | None = None
    for way in oracle.ways(on_cpu):
        wrong = check(way)
        if wrong is None:
            return way, first
        if first is None:
            first = f"with {in_words(way, on_cpu)} {wrong}"
    return Sequential(threads=oracle.threads), first


def ladder(oracle: ClientBatching, on_cpu: bool) -> list[ClientBatching]:
    """The oracle and the slower ones it may give way to, the last one plain."""
    if not isinstance(oracle, Vectorized):
        return [oracle]
    return [oracle, *(way for way in oracle.ways(on_cpu) if way != oracle), Sequential(threads=oracle.threads)]


def in_words(oracle: ClientBatching, on_cpu: bool) -> str:
    """A way to compute, for reports."""
    if not isinstance(oracle, Vectorized):
        return type(oracle).__name__
    options = {"compile": True} if oracle.compile else {"backward": oracle.backward, "replay": oracle.replays(on_cpu)}
    return f"Vectorized({', '.join(f'{name}={value!r}' for name, value in options.items())})"


@contextmanager
def _leaving_no_trace(task: nn.Module, device: torch.device) -> Iterator[None]:
    """Attributes and random generators are afterwards what they were."""
    generators = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with undone(task), python_generators_restored(), generators:
        yield


def _at(evaluate: Evaluate, point: tuple[Tensor, Tensor, Tensor, Any, Randomness]) -> Evaluation:
    """Evaluate on a copy of the batch, which the objective may write into."""
    w, v, b, data, randomness = point
    return evaluate(w, v, b, map_tensors(torch.clone, data), "both", randomness)


def _moved(w: Tensor, g: Tensor) -> Tensor:
    """A step down each client's gradient, by a hundredth of the point's length."""
    length = g.norm(dim=1, keepdim=True)
    step = 0.01 * w.norm(dim=1, keepdim=True) / torch.where(length > 0, length, 1.0)
    return torch.sub(w, step.nan_to_num(0, 0, 0) * g.nan_to_num(0, 0, 0))


def _quantities(
    objective: Objective, one: Evaluation, other: Evaluation
) -> Iterator[tuple[str, Tensor, Tensor, Tensor | float]]:
    """Name, both values ``[S, ...]`` and what rounding adds in absolute terms, of all that is compared."""
    space = objective.space
    for layout, mine, theirs in (
        (space.shared, one.g, other.g),
        (space.personal, one.g_personal, other.g_personal),
    ):
        largest = theirs.abs().amax(1).nan_to_num(0, 0, 0) if theirs.shape[1] else 0.0
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


def _excess(
    mine: Tensor, theirs: Tensor, floor: Tensor | float, eps: float, noise: Tensor | float = 0.0
) -> tuple[int, float] | None:
    """The client in which two values ``[S, n]`` differ by more than rounding, and by how much; None if none does.

    Args:
        mine: One.
        theirs: The other.
        floor: Size of the numbers that both were summed from, ``[S]``.
        eps: Relative precision.
        noise: What rounding is known to change.
    """
    if not mine.shape[1]:
        return None
    mine, theirs = mine.double(), theirs.double()
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    size = theirs.abs().nan_to_num(0, 0, 0).amax(1)
    difference = torch.where(same, 0.0, (mine - theirs).abs()).nan_to_num(torch.inf).amax(1)
    beyond = difference - min(eps**0.5, MOST) * size - min(100 * eps, MOST) * floor - noise
    place = int(beyond.argmax())
    if not beyond[place] > 0:
        return None
    return place, float(difference[place] / size[place])
