"""The view an algorithm's client update has of its clients: operators, minibatches, random numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

import torch
from torch import Tensor

from fedlightning.oracle.base import Blocks, Evaluate, Evaluation, Move, PrefersFixedSize, StepsInPlace
from fedlightning.oracle.compiled import STEPS_TOGETHER, CompiledEvaluate
from fedlightning.oracle.differentiation import apart
from fedlightning.oracle.evaluations import (
    ClientData,
    drawn_by,
    evaluate_all_data,
    evaluate_minibatch,
    leaves_out_done,
    places_named,
    some,
)
from fedlightning.oracle.minibatch import Minibatch, Rows, computing_fewer, restricted_to
from fedlightning.oracle.randomness import EvaluationSeeds
from fedlightning.oracle.tally import Tally


class GradientOracle:
    """Computes the operators of S clients.

    ``oracle(w, batch)`` is the operator ``g [S, d]`` of every client, each at a point of its own in ``w [S, d]``; with
    a personal block, ``oracle(w, v, batch)`` is the pair ``(g_w, g_v)``. Every call updates the clients' buffers and
    counts the losses for logging.

    Attributes:
        personal: Personal blocks at the start of the round, ``[S, p]``; None if the task has none.
        buffers: Present values of the buffers that the objective changes, ``[S, b]``.
        steps: Number of minibatches of each client, ``[S]``.
        full_calls: How often the operator was computed on all data so far.
        steps_together: Number of local steps that are best taken at once; 0 for one by one.
        tally: The clients' losses and scalars so far.
    """

    def __init__(
        self,
        data: ClientData,
        evaluate: Evaluate,
        buffers: Tensor,
        personal: Tensor | None = None,
        evaluate_full: Evaluate | None = None,
        seeds: Sequence[int] | None = None,
        averaged: Tensor | None = None,
    ) -> None:
        """Connect the clients' data with a way to evaluate operators.

        Args:
            data: The clients' data.
            evaluate: Computes operators on minibatches.
            buffers: Values of the buffers that the objective changes, ``[S, b]``.
            personal: Personal blocks, ``[S, p]``; None if the task has none.
            evaluate_full: Computes operators on all data of a client; ``evaluate`` if None.
            seeds: Seed of each client's random numbers in this round and phase; 0, 1, ... if None.
            averaged: Columns of ``buffers`` that the server averages; all if None.
        """
        self._data = data
        self._evaluate = evaluate
        self._evaluate_full = evaluate if evaluate_full is None else evaluate_full
        self.personal = personal
        self.buffers = buffers
        self.steps = data.steps
        self.full_calls = 0
        self.steps_together = STEPS_TOGETHER if isinstance(evaluate, CompiledEvaluate) else 0
        self._in_place = evaluate if isinstance(evaluate, StepsInPlace) else None
        self._steps_to_pay_off = evaluate.steps_to_pay_off if isinstance(evaluate, PrefersFixedSize) else 1
        self._leaves_out_done = leaves_out_done(evaluate)
        self._averaged = averaged
        self._no_block = buffers.new_empty((len(data), 0))  # made once: it takes as long as a product
        self._shared_alone: Blocks = "both" if personal is None else "shared"  # one block cannot be left out
        self._seeds = EvaluationSeeds(range(len(data)) if seeds is None else seeds)
        self.tally = Tally(self.steps)

    @property
    def num_clients(self) -> int:
        """Return the number S of clients in this chunk."""
        return len(self._data)

    def batches(self) -> Iterator[Minibatch]:
        """Yield K minibatches of every client, from the first one again at every call."""
        return computing_fewer(self._data.minibatches(), self.steps, self._steps_to_pay_off)

    def for_those(self, going: Tensor, batch: Minibatch) -> Minibatch:
        """Return a minibatch for clients that are not done, ``going [S]``; the others' operators may be zeros."""
        return restricted_to(going, batch, self._leaves_out_done)

    def pairs(self) -> Iterator[tuple[Minibatch, Minibatch]]:
        """Yield two minibatches for each local step, for phases with ``draws=2``."""
        batches = self.batches()
        return zip(batches, batches, strict=True)

    @overload
    def __call__(self, w: Tensor, batch: Minibatch, /) -> Tensor: ...

    @overload
    def __call__(self, w: Tensor, v: Tensor, batch: Minibatch, /) -> tuple[Tensor, Tensor]: ...

    def __call__(self, w: Tensor, *args: Any) -> Tensor | tuple[Tensor, Tensor]:
        """Compute the operator at ``w`` (and ``v``) on a minibatch, as a new tensor that the caller may change."""
        *personal, batch = args
        if personal:
            result = self._evaluated(w, personal[0], batch, "both")
            return result.g, result.g_personal
        return self.shared_gradient(w, self.personal, batch)

    def shared_gradient(self, w: Tensor, v: Tensor | None, batch: Minibatch) -> Tensor:
        """Compute the operator at ``w`` and ``v [S, p]`` in the shared block only, ``[S, d]``.

        The backward pass leaves out what only the personal block needs.
        """
        return self._evaluated(w, _given(v, self._no_block), batch, self._shared_alone).g

    def steps_in_place(
        self, w: Tensor, v: Tensor | None, batches: Iterator[Minibatch], lr: float | Tensor
    ) -> Minibatch | None:
        """Change ``w`` into ``w - lr * operator`` for as many minibatches as that can be done in place.

        For each of them that is ``w.sub_(oracle.shared_gradient(w, v, batch), alpha=lr)`` without putting the operator
        together, less a rounding where a matrix product is subtracted while it is computed.

        Args:
            w: Points, ``[S, d]``, in memory of their own.
            v: Personal blocks, ``[S, p]``, which stay where they are; None if there are none.
            batches: Minibatches of every client.
            lr: Step size.

        Returns:
            The first minibatch on which no step was taken; None if there are no more.
        """
        in_place, own, blocks = self._in_place, _given(v, self._no_block), self._shared_alone
        batch = next(batches, None)
        if in_place is None or isinstance(lr, Tensor):
            return batch
        while batch is not None and not batch.includes_finished:
            rows = batch.computed
            with _rows_of(w, rows) as point, in_place.steps_in_place(point, some(own, rows), blocks, lr) as step:
                while batch is not None and batch.computed is rows and not batch.includes_finished:
                    buffers, drawn = some(self.buffers, rows), drawn_by(rows, self._seeds.next())
                    result = step(buffers, batch.computed_data, drawn)
                    if result is None:
                        return batch
                    self._count(result, batch, rows)
                    batch = next(batches, None)
        return batch

    def take_steps(self, w: Tensor, v: Tensor | None, batches: Sequence[Minibatch], move: Move) -> Tensor:
        """Take one step on each of several minibatches in one compiled function; see :attr:`steps_together`.

        Args:
            w: Points, ``[S, d]``.
            v: Personal blocks, ``[S, p]``, which stay where they are; None if there are none.
            batches: Minibatches on which every client is active.
            move: Takes a step from ``w`` along the operator at ``w``.

        Returns:
            The new points ``[S, d]``.
        """
        assert isinstance(self._evaluate, CompiledEvaluate)
        own, gathers = _given(v, self._no_block), [batch.gather for batch in batches]
        results = self._evaluate.steps(w, own, self.buffers, gathers, self._shared_alone, move, self._seeds.next())
        for result, batch in zip(results, batches, strict=True):
            self._count(result, batch)
        return results[-1].g

    def personal_gradient(self, w: Tensor, v: Tensor, batch: Minibatch) -> Tensor:
        """Compute the gradient at ``w`` and ``v [S, p]`` in the personal block only, ``[S, p]``.

        The backward pass leaves out what only the shared block needs.
        """
        return self._evaluated(w, v, batch, "personal").g_personal

    def step_personal(
        self, w: Tensor, v: Tensor | None, batch: Minibatch, personal_lr: float | Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the operator, and take a plain gradient step in the personal block on the same minibatch.

        Args:
            w: Points, ``[S, d]``.
            v: Personal blocks, ``[S, p]``; None if there are none.
            batch: A minibatch of every client.
            personal_lr: Step size of the personal block. With 0.0 the block stays where it is, and its gradient is not
                computed.

        Returns:
            The operator at ``w`` and ``v`` in the shared block ``[S, d]``, and the new personal blocks ``[S, p]``.
        """
        if v is None or (isinstance(personal_lr, float) and personal_lr == 0.0):
            return self.shared_gradient(w, v, batch), v
        g, g_v = self(w, v, batch)
        return g, batch.keep(v - personal_lr * g_v, v)

    def at_reference(self, w: Tensor, batch: Minibatch | None = None, v: Tensor | None = None) -> Tensor:
        """Compute the operator at a reference point with the random numbers that the next call will draw.

        Methods that compare two points on the same data need the same dropout masks and noise at both. The call leaves
        no trace: buffers, logged losses and the random numbers of the next call stay as they were.

        Args:
            w: The reference points, ``[S, d]``.
            batch: A minibatch of every client; None for all data of each client.
            v: Personal blocks, ``[S, p]``; None for those of the start of the round.
        """
        own, randomness = _given(v, self.personal, self._no_block), self._seeds.next()
        with torch.random.fork_rng(devices=[w.device] if w.device.type == "cuda" else []):
            if batch is None:
                self.full_calls += 1
                return evaluate_all_data(self._evaluate_full, self._data, w, own, self.buffers, randomness).g
            return evaluate_minibatch(self._evaluate, batch, w, own, self.buffers, self._shared_alone, randomness).g

    def full(self, w: Tensor) -> Tensor:
        """Compute the operator of f_i over all data of each client at ``w [S, d]``, ``[S, d]``; no loss is logged."""
        return self.full_blocks(w)[0]

    def full_blocks(
        self, w: Tensor, v: Tensor | None = None, active: Tensor | None = None, *, counts: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Compute the operator of f_i over all data of each client in both blocks.

        Args:
            w: Points, ``[S, d]``.
            v: Personal blocks, ``[S, p]``; None for those of the start of the round.
            active: ``[S]`` bool, the clients that need it; the others may get zeros. None for all, whose losses do not
                count for logging.
            counts: Whether losses of active clients count for logging.

        Returns:
            The operator in the shared block ``[S, d]`` and in the personal block ``[S, p]`` (p may be 0).
        """
        self.full_calls += 1
        own, randomness = _given(v, self.personal, self._no_block), self._seeds.next()
        result = evaluate_all_data(self._evaluate_full, self._data, w, own, self.buffers, randomness, active)
        if active is not None and counts:
            self.tally.add({"loss": result.loss, **result.scalars}, active)
        self._seeds.advance(active)
        return result.g, result.g_personal

    def take_back(self, buffers: Tensor) -> None:
        """Set the buffers that the server averages back to their values in ``buffers [S, b]``.

        Methods whose clients train a second model call this: the statistics of that model must not reach the server.
        """
        if self._averaged is None:
            self.buffers = buffers
        else:
            self.buffers = self.buffers.index_copy(1, self._averaged, buffers[:, self._averaged])

    def uniform(self, count: int) -> Tensor:
        """Draw ``count`` numbers uniform on [0, 1) for each client, ``[S, count]``.

        The numbers of a client do not depend on the other clients of the chunk.
        """
        drawn = [torch.rand(count, dtype=torch.float64, generator=each) for each in self._seeds.generators()]
        return torch.stack(drawn).to(self.buffers.device)

    def _evaluated(self, w: Tensor, v: Tensor, batch: Minibatch, blocks: Blocks) -> Evaluation:
        result = evaluate_minibatch(self._evaluate, batch, w, v, self.buffers, blocks, self._seeds.next())
        self._count(result := apart(result, w, v), batch)
        return result

    def _count(self, result: Evaluation, batch: Minibatch, rows: Rows | None = None) -> None:
        """Take note of an evaluation on a minibatch, of all clients or of active ones alone."""
        self._seeds.advance(batch.active)
        self.tally.add({"loss": result.loss, **result.scalars}, batch.active if rows is None else None, rows)
        if rows is None:
            self.buffers = batch.keep(result.buffers, self.buffers)
        elif self.buffers.shape[1]:
            self.buffers = self.buffers.clone()
            self.buffers[rows.index] = result.buffers


@contextmanager
def _rows_of(w: Tensor, rows: Rows | None) -> Iterator[Tensor]:
    """Yield rows of points ``[S, d]``, all if None, and bring the points up to date should these be copies."""
    point = some(w, rows)
    try:
        with places_named(rows):
            yield point
    finally:
        if rows is not None and isinstance(rows.index, Tensor):
            w[rows.index] = point


def _given(*blocks: Tensor | None) -> Tensor:
    """Return the first of personal blocks that is given."""
    return next(block for block in blocks if block is not None)
