"""Choose by measurement."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlightning.oracle.base import Cost, Evaluate, Oracle
from fedlightning.oracle.objective import Objective, ObjectiveError
from fedlightning.oracle.sequential import Sequential
from fedlightning.oracle.vectorized import MIN_CALLS_TO_RECORD, Vectorized


@dataclass(frozen=True)
class Trial:
    """What :meth:`Auto.choose` found.

    Attributes:
        oracle: The faster one, with its chunk size fixed.
        report: One sentence with the measured times.
    """

    oracle: Oracle
    report: str


@dataclass(frozen=True)
class Auto(Oracle):
    """Take :class:`Vectorized` or :class:`Sequential`, whichever is faster for this model, data and machine.

    Both run a few gradients of the first round's first cohort; the choice is logged and stored in checkpoints, so that
    a resumed run goes on with the same one. The two agree to rounding, not in every bit: name one of them for runs
    that must repeat bit for bit from their start. An objective that cannot run under ``vmap`` is taken sequentially.

    Args:
        trials: Timed gradients of each.
    """

    trials: int = 4

    def chunk(self, cost: Cost) -> int:
        """Not defined before the choice."""
        raise NotImplementedError("Auto computes nothing itself; call choose() first.")

    def evaluator(self, objective: Objective, calls: int) -> Evaluate:
        """Not defined before the choice."""
        raise NotImplementedError("Auto computes nothing itself; call choose() first.")

    def choose(
        self,
        objective: Objective,
        cost: Cost,
        calls: int,
        load: Callable[[int], tuple[Tensor, Tensor, Tensor, Any]],
        cohort: int,
    ) -> Trial:
        """Time both.

        Args:
            objective: The task's objective.
            cost: What one client's gradient takes.
            calls: Gradients a client takes in a round.
            load: Number of clients to arguments of an evaluator (w, v, buffers, data) for so many.
            cohort: Clients in the cohort.
        """
        chunk = min(Vectorized().chunk(cost), cohort)
        sequential = self._time(Sequential(), objective, calls, load(1))
        if chunk == 1:
            return Trial(Sequential(), "took Sequential: there is one client at a time")
        try:
            vectorized = self._time(Vectorized(), objective, calls, load(chunk)) / chunk
        except ObjectiveError as error:
            return Trial(Sequential(), f"took Sequential: {str(error).splitlines()[0]}")
        times = f"{vectorized * 1e3:.3g} ms a client's gradient in chunks of {chunk}, {sequential * 1e3:.3g} ms alone"
        if vectorized < sequential:
            return Trial(Vectorized(chunk_size=chunk), f"took Vectorized: {times}")
        return Trial(Sequential(), f"took Sequential: {times}")

    def _time(self, oracle: Oracle, objective: Objective, calls: int, arguments: tuple[Any, ...]) -> float:
        """Seconds of the fastest gradient with its step, as the rounds will run it, recorded or not."""
        evaluate = oracle.evaluator(objective, calls)
        w, v, b, data = arguments
        best = float("inf")
        for trial in range(self.trials + 1):
            _synchronize(w)
            start = time.perf_counter()
            w.sub_(evaluate(w, v, b, data).g, alpha=0.0)
            _synchronize(w)
            if trial or calls < MIN_CALLS_TO_RECORD:  # the first call of a recorded oracle records
                best = min(best, time.perf_counter() - start)
        return best


def _synchronize(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
