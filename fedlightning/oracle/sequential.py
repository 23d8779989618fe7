"""Computation of operators for one client after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.seeding import seed_device
from fedlightning.core.tree import map_tensors
from fedlightning.core.validation import require
from fedlightning.oracle.base import (
    ROUNDED_ALIKE,
    Blocks,
    ClientBatching,
    Cost,
    Evaluate,
    Evaluation,
    StepInPlace,
    StepsInPlace,
)
from fedlightning.oracle.differentiation import Gradients, apart, gradients
from fedlightning.oracle.errors import ObjectiveError, writes_into
from fedlightning.oracle.layers.lone_layers import LoneLayers
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.python_generators import seed_python
from fedlightning.oracle.randomness import Randomness


@dataclass(frozen=True)
class Sequential(ClientBatching):
    """Computes one client after the other, which needs least memory and is fastest for large models on CPUs.

    The objective may contain any Python code, and keep in Python what it likes: every client's evaluation runs by
    itself, with random numbers of ``random`` and NumPy of its own.

    Args:
        threads: Number of threads that compute; null for as many as PyTorch takes.
    """

    threads: int | None = None

    def __post_init__(self) -> None:
        require(self, "threads", at_least=1, optional=True)

    def chunk(self, cost: Cost) -> int:
        """Return 1, because clients are computed one by one."""
        return 1

    def evaluator(self, objective: Objective, calls: int) -> Evaluate:
        """Return a function that applies plain autograd to each client; every failure is the objective's own error."""
        return _OneByOne(objective)


class _OneByOne(StepsInPlace):
    """Computes the operators of one client after the other."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def __call__(
        self, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks = "both", randomness: Randomness | None = None
    ) -> Evaluation:
        found = self._gradients(w, v, b, data, blocks, randomness)
        return _stack([each.joined(self._objective, w) for each in found])

    @contextmanager
    def steps_in_place(self, w: Tensor, v: Tensor, blocks: Blocks, lr: float) -> Iterator[StepInPlace]:
        """Begin steps in place; see :class:`~fedlightning.oracle.base.StepsInPlace`."""
        autocast = self._objective.autocast
        possible = w.dtype in ROUNDED_ALIKE and autocast.scale == 1 and autocast.on_cpu

        def step(b: Tensor, data: Any, randomness: Randomness | None) -> Evaluation | None:
            if not possible:
                return None
            rows = []
            for found in self._gradients(w, v, b, data, blocks, randomness):
                rows.append(apart(replace(found, shared=()).joined(self._objective, w), w))
                operator = self._objective.space.shared.to_operator(found.shared)
                with torch.no_grad():
                    torch._foreach_sub_(found.points, [_outside(part, w) for part in operator], alpha=lr)
            return replace(_stack(rows), g=w)

        yield step

    def _gradients(
        self, w: Tensor, v: Tensor, b: Tensor, data: Any, blocks: Blocks, randomness: Randomness | None
    ) -> Iterator[Gradients]:
        """Yield the gradients of each client, after which the client's point may be changed."""
        objective = self._objective
        seeds = None if randomness is None else randomness.seeds()
        for i in range(len(w)):
            version = w._version, v._version
            own = map_tensors(itemgetter(i), data)
            if seeds is not None:
                seed_device(w.device, seeds[i])
                seed_python(seeds[i])  # it may begin to draw from Python at any time
            try:
                found = gradients(objective, self._forward, w[i], v[i], b[i], own, blocks)
            except ObjectiveError:
                raise
            except Exception as error:
                raise ObjectiveError(f"{type(error).__name__}: {error}", place=i) from error
            if (w._version, v._version) != version:
                raise writes_into(objective.name, None, place=i)
            yield found

    def _forward(self, *arguments: Any) -> Any:
        with LoneLayers(channels_last=self._objective.autocast.on_cpu, products=False):
            return self._objective(*arguments)


def _outside(part: Tensor, w: Tensor) -> Tensor:
    """Return a part of the operator, copied if it lies in the points, which steps change one parameter at a time."""
    return part.clone() if part.untyped_storage().data_ptr() == w.untyped_storage().data_ptr() else part


def _stack(rows: list[Evaluation]) -> Evaluation:
    if len(rows) == 1:
        return rows[0]
    for row in rows:
        if odd := sorted(row.scalars.keys() ^ rows[0].scalars.keys()):
            raise ObjectiveError(
                f"objective returned '{odd[0]}' for some clients of a round only. Return the same keys every time, "
                "e.g. with the value 0."
            )
    return Evaluation(
        torch.cat([row.g for row in rows]),
        torch.cat([row.g_personal for row in rows]),
        torch.cat([row.buffers for row in rows]),
        torch.cat([row.loss for row in rows]),
        {name: torch.cat([row.scalars[name] for row in rows]) for name in rows[0].scalars},
    )
