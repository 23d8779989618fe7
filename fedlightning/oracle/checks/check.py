"""The check of a batched oracle against plain evaluation, client by client.

It takes a few consecutive steps of two clients that lie apart in their cohort, on the real model and data and
with equal random numbers, and compares gradients, losses, buffers and logged scalars. The tolerance follows from the
precision of the computation: ``sqrt(eps)`` of a quantity and some ``eps`` of the numbers it was summed from, at most
two per cent. Whatever differs by more is excused only if plain evaluation itself moves about as far when its point is
rounded differently. An oracle that passes is compared once more in float64 where the objective allows it, for terms
that are smaller than the rounding of training (see :mod:`fedlightning.oracle.checks.double`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Protocol

import torch

from fedlightning.oracle.base import ClientBatching
from fedlightning.oracle.checks.comparison import Comparison, Sample, Tolerance
from fedlightning.oracle.checks.double import DoubleComparison, in_double
from fedlightning.oracle.checks.full_precision import in_full_precision
from fedlightning.oracle.errors import BatchedError
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.recording.graphs import NoGraphWarning
from fedlightning.oracle.sequential import Sequential
from fedlightning.oracle.vectorized import Vectorized, is_slow

GPU_EPS = 2.0**-10
"""Relative error of float32 on a GPU, where convolutions are transformed in several ways: gradients of a ResNet-18 that
were computed in two of them differed by 0.3 per cent. What is finer than that is left to the comparison in float64,
which computes several clients without a recording."""

SMALLER = 16.0
"""Divides the loss scale of 16-bit floats until plain evaluation is finite: an overflow hides what differs."""


class Checked(Protocol):
    """Describes a function that says in one line what differs between an oracle and plain evaluation."""

    def __call__(self, oracle: ClientBatching) -> str | None:
        """Return one line of what differs; None if nothing does."""


class SelfCheck:
    """Compares oracles with plain evaluation, by the operators of two clients."""

    def __init__(self, objective: Objective, sample: Sample) -> None:
        """Evaluate the sample plainly, once for all comparisons.

        Raises:
            ObjectiveError: If the objective itself fails.
        """
        self._objective = objective
        self._sample = sample
        self._scale = objective.autocast.scale
        self._comparison = self._compared()
        while not self._comparison.is_finite and self._scale > 1:  # as training would, after steps that are skipped
            self._scale = max(1.0, self._scale / SMALLER)
            self._comparison = self._compared()

    def __call__(self, oracle: ClientBatching) -> str | None:
        """Return one line of what differs between ``oracle`` and plain evaluation; None if nothing does."""
        with self._comparable():
            return self._difference(oracle)

    def _compared(self) -> Comparison:
        with self._comparable():
            return Comparison(self._objective, self._sample)

    @contextmanager
    def _comparable(self) -> Iterator[None]:
        """Compute without TF32, and with a loss scale at which plain evaluation does not overflow."""
        given = self._objective.autocast
        self._objective.autocast = replace(given, scale=self._scale)
        try:
            with in_full_precision(self._sample.w.device):
                yield
        finally:
            self._objective.autocast = given

    def _difference(self, oracle: ClientBatching) -> str | None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            difference = failure = None
            try:
                difference = self._comparison.difference(oracle, Tolerance.of(self.eps))
            except BatchedError as error:
                failure = str(error).splitlines()[0]
        for each in caught:
            if issubclass(each.category, NoGraphWarning):  # it is given once in a process
                warnings.warn(each.message, stacklevel=2)
        if failure is not None:
            return failure
        if isinstance(oracle, Vectorized) and oracle.backward == "autograd" and any(map(is_slow, caught)):
            return "vmap would run a part of the objective client by client"
        if difference is None and isinstance(oracle, Vectorized) and self._objective.runs_alone is None:
            self._objective.runs_alone = self._agrees_alone(oracle)
        if difference is not None or self._in_double is None:
            return difference
        return self._in_double(oracle)

    def _agrees_alone(self, oracle: Vectorized) -> bool:
        """Return whether the last client, evaluated without ``vmap``, agrees with plain evaluation."""
        try:
            found = Comparison(self._objective, self._sample.last()).difference(oracle, Tolerance.of(self.eps))
        except BatchedError:
            return False
        return found is None

    @property
    def eps(self) -> float:
        """Return the relative rounding error of the precision in which the task trains."""
        eps = torch.finfo(self._objective.autocast.dtype or self._objective.dtype).eps
        in_single_on_gpu = self._sample.w.is_cuda and eps == torch.finfo(torch.float32).eps
        return GPU_EPS if in_single_on_gpu else eps

    @cached_property
    def _in_double(self) -> DoubleComparison | None:
        """Return the comparison in float64, made once an oracle has passed in the precision of training."""
        if self.eps <= torch.finfo(torch.float64).eps:
            return None
        return in_double(self._objective, self._sample)


def fastest_that_agrees(oracle: Vectorized, on_cpu: bool, check: Checked) -> tuple[Vectorized | Sequential, str | None]:
    """Return the fastest form of the oracle that agrees with plain evaluation, else plain evaluation itself.

    Args:
        oracle: The fastest form, checked first.
        on_cpu: Whether the objective runs on a CPU.
        check: Says what is wrong with an oracle; None if nothing is.

    Returns:
        The oracle that was found, and one line that says what was wrong with the fastest if that was given up.
    """
    first: str | None = None
    for way in oracle.fallbacks(on_cpu):
        wrong = check(way)
        if wrong is None:
            return way, first
        if first is None:
            first = f"with {in_words(way, on_cpu)} {wrong}"
    return Sequential(threads=oracle.threads), first


def ladder(oracle: ClientBatching, on_cpu: bool) -> list[ClientBatching]:
    """Return the oracle and the slower ones that may replace it; the last one is plain evaluation."""
    if not isinstance(oracle, Vectorized):
        return [oracle]
    return [oracle, *(way for way in oracle.fallbacks(on_cpu) if way != oracle), Sequential(threads=oracle.threads)]


def in_words(oracle: ClientBatching, on_cpu: bool) -> str:
    """Describe an oracle, for reports."""
    if not isinstance(oracle, Vectorized):
        return type(oracle).__name__
    options = {"compile": True} if oracle.compile else {"backward": oracle.backward, "replay": oracle.replays(on_cpu)}
    return f"Vectorized({', '.join(f'{name}={value!r}' for name, value in options.items())})"
