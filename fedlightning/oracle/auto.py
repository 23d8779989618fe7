"""The choice among oracles, by measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch

from fedlightning.core.memory import give_back_what_is_free
from fedlightning.core.validation import require
from fedlightning.oracle.base import ClientBatching, Cost, Evaluate
from fedlightning.oracle.objective import Objective, is_out_of_memory
from fedlightning.oracle.sequential import Sequential
from fedlightning.oracle.threads import limited
from fedlightning.oracle.timing import Arguments, seconds_of_a_step
from fedlightning.oracle.vectorized import Vectorized

WORTH_A_TRIAL = 0.9
"""Where chunks take at least this part of the time of clients one by one, these are tried from a recording as well."""

WORTH_A_CHANGE = 0.9
"""More threads or smaller chunks must save at least a tenth of the time: on a busy machine, threads that wait for each
other cost far more."""

WORTH_CHUNKS, WORTH_CHUNKS_ON_A_GPU = 0.9, 0.95
"""Chunks of several clients must save a tenth of the time of clients one by one. Rounds in chunks are 5 to 15 % slower
than their trials, which see neither what a chunk's answer costs nor that a round's first step runs as it stands. On a
GPU that was not measured, and a twentieth must do."""

WORTH_RECORDING = 0.95
"""Clients one by one from a recording must save a twentieth over clients side by side: rounds of the former are some
5 % slower than their trials, as those in plain PyTorch are, and rounds of the latter are not."""

WORTH_PARTS = 0.95
"""Clients divided among threads must save a twentieth: their steps wait for each other, so that threads seldom do."""

GAIN_OF_GRAPHS = 8
"""On a GPU, replaying clients one by one is tried where all at once gain less than a CUDA graph of a single one may: it
spares the time between one operation and the next, in which the GPU waits for Python."""

WORTH_MORE_CLIENTS = 0.98
"""Larger chunks must save a little of the time, for the memory that they take; fewer chunks also cost less to begin."""

SMALLEST_HALVED = 2
"""Chunks of two clients are not cut further; what is left is to replay them one by one."""


class Load(Protocol):
    """The signature of functions that give arguments of an evaluator."""

    def __call__(self, size: int, at_a_time: int = 1) -> Arguments:
        """Return arguments for chunks of at most ``size`` clients, ``at_a_time`` of them at a time."""


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
        alone = _Timed(*self._threaded(Sequential(), objective, calls(1), load(1)), _ALONE)
        found = [alone]
        if batched is not None:
            found = self._batched_ways(batched, alone, objective, calls, load, larger)
        most = torch.get_num_threads()
        gain = GAIN_OF_GRAPHS if objective.autocast.on_gpu else 2 * most
        if min(each.counted for each in found) * gain > alone.seconds:
            replayed = side_by_side()
            taken = None if replayed is None else self._seconds_if_it_fits(replayed, objective, calls, load)
            if replayed is not None and taken is not None:
                how = "replayed one by one" if replayed.at_a_time == 1 else "side by side"
                found = [each._replace(worth=WORTH_RECORDING) if each.how == _RECORDED else each for each in found]
                found.append(_Timed(replayed, taken, how))
        chosen = min(found, key=lambda each: each.counted)
        return Trial(chosen.way, _in_words(chosen, found, most if objective.autocast.on_cpu else 1))

    def _batched_ways(
        self,
        batched: Vectorized,
        alone: _Timed,
        objective: Objective,
        calls: Callable[[int], int],
        load: Load,
        larger: Sequence[int],
    ) -> list[_Timed]:
        """Time the best chunks, without a recording too on a GPU, and one by one where they gain little on a CPU."""
        way, taken = self._in_chunks(batched, objective, calls, load, larger)
        size, on_cpu = way.chunk_size, objective.autocast.on_cpu
        assert size is not None
        worth = 1.0 if size == 1 else WORTH_CHUNKS if on_cpu else WORTH_CHUNKS_ON_A_GPU
        found = [_Timed(way, taken, f"in chunks of {size}", worth), alone]
        if objective.autocast.on_gpu and batched.replay:
            plain = self._threaded(replace(batched, replay=False), objective, calls(size), load(size))
            found.append(_Timed(*plain, "without a recording", worth))
        if on_cpu and size != 1 and taken > WORTH_A_TRIAL * alone.seconds:
            one = self._threaded(replace(batched, chunk_size=1), objective, calls(1), load(1))
            found.append(_Timed(*one, _RECORDED))
        return found

    def _seconds_if_it_fits(
        self, way: Vectorized, objective: Objective, calls: Callable[[int], int], load: Load
    ) -> float | None:
        """Return the seconds for one client's gradient; None if a chunk does not fit into memory, as others do."""
        size = way.chunk_size
        assert size is not None
        try:
            with limited(way.threads_inside(objective)):
                return self._for_one(way, objective, calls(size), load(size, way.at_a_time))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        return None

    def _in_chunks(
        self,
        way: Vectorized,
        objective: Objective,
        calls: Callable[[int], int],
        load: Load,
        larger: Sequence[int],
    ) -> tuple[Vectorized, float]:
        """Return a batched way with its best number of threads and chunk size, and the seconds for one client."""
        size = way.chunk_size
        assert size is not None
        chosen, best = self._threaded(way, objective, calls(size), load(size))
        if not objective.autocast.on_cpu:
            return chosen, best
        grown, best = self._grown(chosen, best, objective, calls, load, larger)
        divided = self._divided(grown, best, objective, calls, load, larger)
        if divided is not None:
            chosen, best = divided
            grown, best = self._grown(chosen, best, objective, calls, load, larger)
        if grown != chosen:
            return grown, best
        assert chosen.chunk_size is not None
        return self._resized(chosen, best, _halves(chosen.chunk_size), WORTH_A_CHANGE, objective, calls, load)

    def _grown(
        self,
        way: Vectorized,
        best: float,
        objective: Objective,
        calls: Callable[[int], int],
        load: Load,
        larger: Sequence[int],
    ) -> tuple[Vectorized, float]:
        """Return the way with larger chunks while these are faster, and the seconds for one client."""
        size = way.chunk_size
        assert size is not None
        larger = [each for each in larger if each > size]
        if larger:  # a disturbed trial, which all others are compared with, would let chunks grow
            with limited(way.threads_inside(objective)):
                best = min(best, self._for_one(way, objective, calls(size), load(size)))
        return self._resized(way, best, larger, WORTH_MORE_CLIENTS, objective, calls, load)

    def _resized(
        self,
        way: Vectorized,
        best: float,
        sizes: Iterable[int],
        worth: float,
        objective: Objective,
        calls: Callable[[int], int],
        load: Load,
    ) -> tuple[Vectorized, float]:
        """Return the way with one chunk size after the other, up to the first that is not worth it, and its seconds."""
        for size in sizes:
            candidate = replace(way, chunk_size=size)
            taken = self._seconds_if_faster(candidate, best, objective, calls(size), load(size), worth)
            if taken is None:
                break
            way, best = candidate, taken
        return way, best

    def _divided(
        self,
        way: Vectorized,
        best: float,
        objective: Objective,
        calls: Callable[[int], int],
        load: Load,
        larger: Sequence[int],
    ) -> tuple[Vectorized, float] | None:
        """Return the way with its clients divided among all threads, each part as large as a chunk, if it is faster."""
        most, size = torch.get_num_threads(), way.chunk_size
        assert size is not None
        if most == 1 or not way.can_be_divided(objective):
            return None
        together = max([size, *(each for each in larger if each <= most * size)])
        candidate = replace(way, threads=None, parts=most, chunk_size=together)
        taken = self._seconds_if_faster(candidate, best, objective, calls(together), load(together), WORTH_PARTS)
        return None if taken is None else (candidate, taken)

    def _threaded(
        self,
        way: Any,
        objective: Objective,
        calls: int,
        arguments: Arguments,
    ) -> tuple[Any, float]:
        """Return the way with its best number of threads, and the seconds for one client's gradient."""
        most = torch.get_num_threads()
        if most == 1 or not objective.autocast.on_cpu:
            return way, self._for_one(way, objective, calls, arguments)
        chosen, best = way, float("inf")
        for threads in _doubling(most):
            candidate = replace(way, threads=threads)
            taken = self._seconds_if_faster(candidate, best, objective, calls, arguments)
            if taken is None:
                break
            chosen, best = candidate, taken
        return chosen, best

    def _seconds_if_faster(
        self,
        candidate: ClientBatching,
        best: float,
        objective: Objective,
        calls: int,
        arguments: Arguments,
        worth: float = WORTH_A_CHANGE,
    ) -> float | None:
        """Return the seconds for one client's gradient where a change is worth it; None where it is not.

        Who loses is timed once more, because other work on the machine can spoil a trial of a few milliseconds, and a
        whole run would keep the slower way.
        """
        for _ in range(2):
            with limited(candidate.threads_inside(objective)):
                taken = self._for_one(candidate, objective, calls, arguments)
            if taken <= worth * best:
                return taken
        return None

    def _for_one(self, oracle: ClientBatching, objective: Objective, calls: int, arguments: Arguments) -> float:
        """Return the seconds for one client's gradient, tried in memory that other ways have left to the system."""
        give_back_what_is_free()
        return self.seconds(oracle, objective, calls, arguments) / len(arguments.w)

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
    return f"took {type(way).__name__}{_behind(', ', chosen)}{threads}: {', '.join(times)}{why}"


def _behind(sign: str, timed: _Timed) -> str:
    return "" if timed.how == _ALONE else f"{sign}{timed.how}"


def _halves(size: int) -> Iterator[int]:
    """Yield half of a chunk, half of that, and so on."""
    while size > SMALLEST_HALVED:
        size = (size + 1) // 2
        yield size


def _doubling(most: int) -> Sequence[int]:
    """Return 1, 2, 4, ... and ``most``."""
    return [*(2**k for k in range(most.bit_length()) if 2**k < most), most]


def _milliseconds(seconds: float) -> str:
    taken = 1e3 * seconds
    return f"{taken:.3g} ms" if taken < 999.5 else f"{taken:.0f} ms"  # 1234 ms, not 1.23e+03
