"""The choice among oracles, by measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from fedlightning.core.validation import require
from fedlightning.oracle.base import ClientBatching, Cost, Evaluate
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.sequential import Sequential
from fedlightning.oracle.timing import Arguments, seconds_of_a_step
from fedlightning.oracle.tuning import Load, Tuning
from fedlightning.oracle.vectorized import Vectorized

WORTH_A_TRIAL = 0.9
"""Where chunks take at least this part of the time of clients one by one, these are tried from a recording as well."""

WORTH_CHUNKS, WORTH_CHUNKS_ON_A_GPU = 0.9, 0.95
"""Chunks of several clients must save a tenth of the time of clients one by one. Rounds in chunks are 5 to 15 % slower
than their trials, which see neither what a chunk's answer costs nor that a round's first step runs as it stands. On a
GPU that was not measured, and a twentieth must do."""

WORTH_RECORDING = 0.95
"""Clients one by one from a recording must save a twentieth over clients side by side: rounds of the former are some
5 % slower than their trials, as those in plain PyTorch are, and rounds of the latter are not."""

GAIN_OF_GRAPHS = 8
"""On a GPU, replaying clients one by one is tried where all at once gain less than a CUDA graph of a single one may: it
spares the time between one operation and the next, in which the GPU waits for Python."""


@dataclass(frozen=True)
class Trial:
    """Reports what :meth:`Auto.choose` found.

    Attributes:
        oracle: The fastest way, with its chunk size and threads fixed; not chunks where they hardly save anything.
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
    with plain evaluation is timed, also with larger chunks while those are faster, or else with smaller ones. Where it
    gains little, because a single client keeps a processor busy, replays of one client's gradient
    (``Vectorized(backward="each")``) are tried as well, side by side if there are several threads. On a GPU replays are
    CUDA graphs, and the batched way is timed without them, too: large networks gain nothing, and a graph is captured
    anew in each round.

    Args:
        trials: Number of timed gradients for each way, at least 1; fewer where they take more than a tenth of a second,
            and up to eight times as many where they take less than a hundredth.
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
        calls: Callable[[int], int],
        load: Load,
        batched: Vectorized | None,
        side_by_side: Callable[[], Vectorized | None],
        larger: Sequence[int] = (),
    ) -> Trial:
        """Time clients one after the other and, if there is a batched way, many at once.

        Args:
            objective: The task's objective.
            calls: Maps a number of clients computed together to the number of their gradients in a round.
            load: Gives an evaluator's arguments for as many clients as chunks of this cohort have.
            batched: The fastest batched way that is right, with a fixed chunk size; None if there is none.
            side_by_side: Returns a way that replays every client on a thread of its own, with a fixed chunk size and
                its threads; None if that is wrong for this objective.
            larger: Larger chunks that may be tried, the smallest first.
        """
        tuning = Tuning(self.seconds, objective, calls, load, larger)
        alone = _Timed(*tuning.threaded(Sequential()), _ALONE)
        found = [alone] if batched is None else _batched_ways(batched, alone, tuning)
        most = torch.get_num_threads()
        gain = GAIN_OF_GRAPHS if objective.autocast.on_gpu else 2 * most
        if min(each.counted for each in found) * gain > alone.seconds:
            replayed = side_by_side()
            taken = None if replayed is None else tuning.if_it_fits(replayed)
            if replayed is not None and taken is not None:
                how = "replayed one by one" if replayed.at_a_time == 1 else "side by side"
                found = [each._replace(worth=WORTH_RECORDING) if each.how == _RECORDED else each for each in found]
                found.append(_Timed(replayed, taken, how))
        chosen = min(found, key=lambda each: each.counted)
        return Trial(chosen.way, _in_words(chosen, found, most if objective.autocast.on_cpu else 1))

    def seconds(self, oracle: ClientBatching, objective: Objective, calls: int, arguments: Arguments) -> float:
        """Measures the time of one gradient of all clients with its step, as the rounds will run it, recorded or not.

        See :func:`~fedlightning.oracle.timing.seconds_of_a_step`. A subclass may measure something else, such as
        energy: the way with the smallest number is taken.

        Args:
            oracle: The way that is tried.
            objective: What it differentiates.
            calls: Gradients of a round, which decide whether it records them.
            arguments: What the gradients are tried on.

        Returns:
            The time in seconds; of a recorded oracle, with its share of the recording.
        """
        return seconds_of_a_step(oracle, objective, calls, arguments, self.trials)


_ALONE, _RECORDED = "alone", "in chunks of 1"
"""How :class:`Sequential` has clients go, and a recording of a single one, in words."""


class _Timed(NamedTuple):
    """A way and the seconds that it takes for one client's gradient.

    Attributes:
        way: Its chunk size and threads are fixed.
        seconds: As measured.
        how: How clients go, in words.
        worth: The part of another way's time that it may take at most, to be preferred.
    """

    way: ClientBatching
    seconds: float
    how: str
    worth: float = 1.0

    @property
    def counted(self) -> float:
        """Return the seconds that count in the comparison."""
        return self.seconds / self.worth


def _batched_ways(batched: Vectorized, alone: _Timed, tuning: Tuning) -> list[_Timed]:
    """Time the best chunks, without a recording too on a GPU, and one by one where they gain little on a CPU."""
    way, taken = tuning.in_chunks(batched)
    size, autocast = way.chunk_size, tuning.objective.autocast
    worth = 1.0 if size == 1 else WORTH_CHUNKS if autocast.on_cpu else WORTH_CHUNKS_ON_A_GPU
    found = [_Timed(way, taken, f"in chunks of {size}", worth), alone]
    if autocast.on_gpu and batched.replay:
        found.append(_Timed(*tuning.threaded(replace(batched, replay=False)), "without a recording", worth))
    if autocast.on_cpu and size != 1 and taken > WORTH_A_TRIAL * alone.seconds:
        found.append(_Timed(*tuning.threaded(replace(batched, chunk_size=1)), _RECORDED))
    return found


def _in_words(chosen: _Timed, found: Sequence[_Timed], most: int) -> str:
    """Report in one sentence what was chosen on how many of so many threads, and the times of all that was tried."""
    way = chosen.way
    parts = way.parts if isinstance(way, Vectorized) else 1
    used = way.threads if parts == 1 else parts
    threads = "" if used is None or most == 1 else f" on {used} of {most} threads"
    if parts > 1:
        threads = f" in {parts} parts{threads}"
    first, *others = found
    times = [f"{_milliseconds(first.seconds)} a client's gradient{_behind(' ', first)}"]
    times += [f"{_milliseconds(each.seconds)} {each.how}" for each in others]
    fastest = min(found, key=lambda each: each.seconds)
    why = "" if chosen is fastest else f"; going {fastest.how} must save {1 - fastest.worth:.0%}"
    name = "Vectorized(backward='vmap')" if getattr(way, "backward", None) == "vmap" else type(way).__name__
    return f"took {name}{_behind(', ', chosen)}{threads}: {', '.join(times)}{why}"


def _behind(sign: str, timed: _Timed) -> str:
    return "" if timed.how == _ALONE else f"{sign}{timed.how}"


def _milliseconds(seconds: float) -> str:
    taken = 1e3 * seconds
    return f"{taken:.3g} ms" if taken < 999.5 else f"{taken:.0f} ms"  # 1234 ms, not 1.23e+03
