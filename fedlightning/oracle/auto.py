"""The choice among oracles, by measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedlightning.core.validation import require
from fedlightning.oracle.base import ClientBatching, Cost, Evaluate
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.randomness import Randomness
from fedlightning.oracle.sequential import Sequential
from fedlightning.oracle.threads import limited
from fedlightning.oracle.vectorized import MIN_CALLS_TO_RECORD, Vectorized

WORTH_A_THREAD = 0.9
"""More threads must save at least a tenth of the time: on a busy machine, waiting for each other costs far more."""

Arguments = tuple[Tensor, Tensor, Tensor, Any]


@dataclass(frozen=True)
class Trial:
    """Reports what :meth:`Auto.choose` found.

    Attributes:
        oracle: The fastest way, with its chunk size and threads fixed.
        report: One sentence with the measured times.
    """

    oracle: ClientBatching
    report: str


@dataclass(frozen=True)
class Auto(ClientBatching):
    """Takes :class:`Vectorized` or :class:`Sequential`, on one thread or several, whichever is faster here.

    Each way computes a few gradients of the first round's first cohort. The choice is logged and stored in checkpoints,
    so that a resumed run goes on with the same way. The ways agree up to rounding, not in every bit: for runs that must
    repeat bit for bit from their start, name one way and its threads. Of the batched ways, only the fastest that agrees
    with plain evaluation is timed; if none agrees, clients are computed one after the other.

    Args:
        trials: Number of timed gradients for each way, at least 1.
    """

    trials: int = 4

    def __post_init__(self) -> None:
        require(self, "trials", at_least=1)

    def chunk(self, cost: Cost) -> int:
        """Raise an error, because nothing is chosen yet."""
        raise NotImplementedError("Auto computes nothing itself; call choose() first.")

    def evaluator(self, objective: Objective, calls: int) -> Evaluate:
        """Raise an error, because nothing is chosen yet."""
        raise NotImplementedError("Auto computes nothing itself; call choose() first.")

    def choose(
        self,
        objective: Objective,
        calls: int,
        load: Callable[[int], Arguments],
        batched: Vectorized | None,
    ) -> Trial:
        """Time clients one after the other and, if there is a batched way, many at once.

        Args:
            objective: The task's objective.
            calls: Number of gradients that a client takes in a round.
            load: Maps a number of clients to an evaluator's arguments (w, v, buffers, data) for that many clients.
            batched: The fastest batched way that is right, with a fixed chunk size; None if there is none.
        """
        ways: list[tuple[ClientBatching, int]] = [(Sequential(), 1)]
        if batched is not None:
            assert batched.chunk_size is not None
            ways.append((batched, batched.chunk_size))
        found = [self._threaded(way, objective, calls, load(clients), clients) for way, clients in ways]
        (alone, alone_time), *rest = found
        threads = "" if alone.threads is None else f" on {alone.threads} of {torch.get_num_threads()} threads"
        if not rest:
            return Trial(alone, f"took Sequential{threads}: {alone_time * 1e3:.3g} ms a client's gradient")
        (batch, batch_time), chunk = rest[0], ways[1][1]
        times = f"{batch_time * 1e3:.3g} ms a client's gradient in chunks of {chunk}, {alone_time * 1e3:.3g} ms alone"
        if batch_time < alone_time:
            threads = "" if batch.threads is None else f" on {batch.threads} of {torch.get_num_threads()} threads"
            return Trial(batch, f"took Vectorized{threads}: {times}")
        return Trial(alone, f"took Sequential{threads}: {times}")

    def _threaded(
        self,
        way: Any,
        objective: Objective,
        calls: int,
        arguments: Arguments,
        num_clients: int,
    ) -> tuple[Any, float]:
        """Return the way with its best number of threads, and the seconds for one client's gradient."""
        most = torch.get_num_threads()
        if most == 1 or not objective.autocast.on_cpu:
            return way, self.seconds(way, objective, calls, arguments) / num_clients
        chosen, best = way, float("inf")
        for threads in _doubling(most):
            candidate = replace(way, threads=threads)
            with limited(threads):
                taken = self.seconds(candidate, objective, calls, arguments) / num_clients
            if taken > WORTH_A_THREAD * best:
                break
            chosen, best = candidate, taken
        return chosen, best

    def seconds(self, oracle: ClientBatching, objective: Objective, calls: int, arguments: Arguments) -> float:
        """Measures the time of one gradient of all clients with its step, as the rounds will run it, recorded or not.

        A subclass may measure something else, such as energy: the way with the smallest number is taken.

        Args:
            oracle: The way that is tried.
            objective: What it differentiates.
            calls: Gradients of a round, which decide whether it records them.
            arguments: Points, personal blocks, buffers and one minibatch of the clients.

        Returns:
            The shortest time of the trials, in seconds.
        """
        evaluate = oracle.evaluator(objective, calls)
        w, v, b, data = arguments
        best = float("inf")
        for trial in range(self.trials + 1):
            _synchronize(w)
            start = time.perf_counter()
            w.sub_(evaluate(w, v, b, data, "both", Randomness(range(len(w)), trial)).g, alpha=0.0)
            _synchronize(w)
            if trial or calls < MIN_CALLS_TO_RECORD:  # a recorded oracle's first call records
                best = min(best, time.perf_counter() - start)
        return best


def _doubling(most: int) -> Sequence[int]:
    """Return 1, 2, 4, ... and ``most``."""
    return [*(2**k for k in range(most.bit_length()) if 2**k < most), most]


def _synchronize(tensor: Tensor) -> None:
    if tensor.device.type == "cuda":
        torch.cuda.synchronize(tensor.device)
