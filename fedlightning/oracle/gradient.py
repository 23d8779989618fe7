"""What an algorithm's ``client`` sees of its clients: operators, minibatches, randomness."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, overload

import torch
from torch import Tensor

from fedlightning.oracle.base import Blocks, Evaluate, Evaluation
from fedlightning.oracle.objective import ObjectiveError
from fedlightning.oracle.randomness import Randomness


@dataclass(frozen=True)
class Minibatch:
    """One minibatch of every client of a chunk.

    Attributes:
        data: The data set's structure, leaves ``[S, B, ...]``.
        active: ``[S]`` bool, False for a client that has no more minibatches; None if all have.
    """

    data: Any
    active: Tensor | None = None

    def keep(self, new: Tensor, old: Tensor) -> Tensor:
        """``new [S, ...]``, or ``old`` for clients that have no more minibatches."""
        return new if self.active is None else torch.where(self.active[:, None], new, old)


class ClientData(Protocol):
    """The data of S clients in one round; see :class:`fedlightning.federation.cohort.Chunk`."""

    @property
    def steps(self) -> Tensor:
        """Minibatches of each client, ``[S]``, in the parameters' dtype."""

    def __len__(self) -> int:
        """S."""

    def minibatches(self) -> Iterator[Minibatch]:
        """K minibatches; clients with fewer are marked inactive at the end."""

    def full(self) -> Iterator[tuple[Tensor, Any]]:
        """All data of every client, in groups of clients of equal size: (positions in the chunk, data)."""


class GradientOracle:
    """The operators of S clients.

    ``oracle(w, batch)`` is the operator ``g [S, d]`` of every client at its own row of ``w [S, d]``; with a personal
    block, ``oracle(w, v, batch)`` is the pair ``(g_w, g_v)``. Losses are tallied for logging, buffers follow along.

    Attributes:
        personal: Personal blocks as the round found them, ``[S, p]``; None if the task has none.
        buffers: Buffers the objective changes, ``[S, b]``.
        steps: Minibatches of each client, ``[S]``.
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
        """Join data and a way to evaluate.

        Args:
            data: The clients' data.
            evaluate: Computes operators on minibatches.
            buffers: Buffers the objective changes.
            personal: Personal blocks.
            evaluate_full: Computes operators on all data; ``evaluate`` if None.
            seeds: Seed of each client's own randomness in this round; 0, 1, ... if None.
            averaged: Places of the buffers that the server averages; all if None.
        """
        self._data = data
        self._evaluate = evaluate
        self._evaluate_full = evaluate if evaluate_full is None else evaluate_full
        self._seeds = range(len(data)) if seeds is None else seeds
        self.personal = personal
        self.buffers = buffers
        self._averaged = averaged
        self.steps = data.steps
        self._no_personal = buffers.new_empty((len(data), 0))
        self._values: dict[str, list[Tensor]] = {}
        self._active: list[Tensor] = []
        self._all_active = torch.ones_like(self.steps)
        self._evaluations = 0
        self._missed: Tensor | None = None  # [S], evaluations that were not a client's own any more

    @property
    def num_clients(self) -> int:
        """S, the number of clients of this chunk."""
        return len(self._data)

    def batches(self) -> Iterator[Minibatch]:
        """K minibatches of every client; from the start again at every call."""
        return self._data.minibatches()

    def pairs(self) -> Iterator[tuple[Minibatch, Minibatch]]:
        """Two minibatches a local step, for phases with ``draws=2``."""
        batches = self.batches()
        return zip(batches, batches, strict=True)

    @overload
    def __call__(self, w: Tensor, batch: Minibatch, /) -> Tensor: ...

    @overload
    def __call__(self, w: Tensor, v: Tensor, batch: Minibatch, /) -> tuple[Tensor, Tensor]: ...

    def __call__(self, w: Tensor, *args: Any) -> Tensor | tuple[Tensor, Tensor]:
        """The operator at ``w`` (and ``v``) on a minibatch; a new tensor the caller may change."""
        *personal, batch = args
        if personal:
            result = self._evaluated(w, personal[0], batch, "both")
            return result.g, result.g_personal
        return self.shared_gradient(w, self.personal, batch)

    def shared_gradient(self, w: Tensor, v: Tensor | None, batch: Minibatch) -> Tensor:
        """The operator in the shared block alone, ``[S, d]``, at ``w`` and ``v [S, p]``; cheaper than both."""
        return self._evaluated(w, self._no_personal if v is None else v, batch, self._shared_alone).g

    def personal_gradient(self, w: Tensor, v: Tensor, batch: Minibatch) -> Tensor:
        """The gradient in the personal block alone, ``[S, p]``, at ``w`` and ``v [S, p]``; cheaper than both."""
        return self._evaluated(w, v, batch, "personal").g_personal

    def step_personal(
        self, w: Tensor, v: Tensor | None, batch: Minibatch, personal_lr: float | Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The operator at ``w`` and ``v``, and the personal block after a plain step on the same minibatch.

        Args:
            w: Points, ``[S, d]``.
            v: Personal blocks, ``[S, p]``; None if there are none.
            batch: A minibatch of every client.
            personal_lr: Step size of the personal block; with 0.0 it stays where it is and has no gradient computed.

        Returns:
            The operator in the shared block ``[S, d]`` and the new personal blocks.
        """
        if v is None or (isinstance(personal_lr, float) and personal_lr == 0.0):
            return self.shared_gradient(w, v, batch), v
        g, g_v = self(w, v, batch)
        return g, batch.keep(v - personal_lr * g_v, v)

    def at_reference(self, w: Tensor, batch: Minibatch | None = None, v: Tensor | None = None) -> Tensor:
        """The operator at a reference point, with the random numbers (dropout, noise) that the next call will draw.

        For methods that compare two points on the same data. It leaves no trace: buffers, logged losses and the
        numbers of the next call stay as they were.

        Args:
            w: The reference points, ``[S, d]``.
            batch: The data; None for all of a client's data.
            v: Personal blocks, ``[S, p]``; None for those of the start of the round.
        """
        with torch.random.fork_rng(devices=[w.device] if w.device.type == "cuda" else []):
            if batch is None:
                return self._everything(w, v)[0]
            own, randomness = self._personal_or_none(v), self._randomness
            return self._evaluate(w, own, self.buffers, batch.data, self._shared_alone, randomness).g

    def full(self, w: Tensor, active: Tensor | None = None) -> Tensor:
        """The operator of f_i over all of a client's data, ``[S, d]``.

        Args:
            w: ``[S, d]``.
            active: ``[S]`` bool, the clients whose losses are tallied for logging; None for no tally.
        """
        return self.full_blocks(w, active=active)[0]

    def full_blocks(self, w: Tensor, v: Tensor | None = None, active: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As :meth:`full` in the shared block ``[S, d]`` and in the personal one ``[S, p]`` (p may be 0).

        Args:
            w: ``[S, d]``.
            v: Personal blocks, ``[S, p]``; None for those of the start of the round.
            active: ``[S]`` bool, the clients whose losses are tallied for logging; None for no tally.
        """
        g, g_v, values = self._everything(w, v)
        if active is not None:
            self._count(values, active)
        self._advance(active)
        return g, g_v

    def take_back(self, buffers: Tensor) -> None:
        """Put those of the buffers that the server averages back to ``buffers [S, b]``.

        For methods whose clients train a second model: its statistics are not the global model's.
        """
        if self._averaged is None:
            self.buffers = buffers
        else:
            self.buffers = self.buffers.index_copy(1, self._averaged, buffers[:, self._averaged])

    def uniform(self, count: int) -> Tensor:
        """Numbers uniform on [0, 1), ``[S, count]``; each client's depend on nobody else in its chunk."""
        rows = [torch.rand(count, dtype=torch.float64, generator=generator) for generator in self.generators()]
        return torch.stack(rows).to(self.buffers.device)

    def generators(self) -> list[torch.Generator]:
        """New generators on the CPU, one a client, seeded by its seed of this round and phase."""
        return [torch.Generator().manual_seed(seed) for seed in self._seeds]

    def tally(self) -> dict[str, Tensor]:
        """Mean loss and scalars of each client over its evaluations, ``[S]`` each; NaN for clients without any."""
        if not self._active:
            return {}
        active = torch.stack(self._active)
        count = active.sum(0)
        for name, values in self._values.items():
            if len(values) != len(active):
                raise ObjectiveError(
                    f"objective returned '{name}' in {len(values)} of {len(active)} evaluations of a round. Return the "
                    "same keys every time, e.g. with the value 0."
                )
        return {
            name: torch.where(active > 0, torch.stack(values), 0.0).sum(0) / count
            for name, values in self._values.items()
        }

    def evaluated(self) -> Tensor:
        """Which clients have evaluated anything that is tallied, ``[S]`` bool; a solver may find nothing to do."""
        if self._active and self._active[0] is self._all_active:
            return self._all_active > 0
        return torch.stack([torch.zeros_like(self._all_active), *self._active]).sum(0) > 0

    def _everything(self, w: Tensor, personal: Tensor | None) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Operators in both blocks and values, over all data of every client."""
        v = self._personal_or_none(personal)
        g, g_v = torch.empty_like(w), torch.empty_like(v)
        values: dict[str, Tensor] = {}
        for rows, data in self._data.full():
            randomness = self._randomness.of(rows)
            result = self._evaluate_full(w[rows], v[rows], self.buffers[rows], data, "both", randomness)
            g[rows], g_v[rows] = result.g, result.g_personal
            for name, value in {"loss": result.loss, **result.scalars}.items():
                values.setdefault(name, value.new_empty(len(w)))[rows] = value
        return g, g_v, values

    @property
    def _randomness(self) -> Randomness:
        """The random numbers of the next evaluation: a client's own evaluations count, not those of its chunk."""
        return Randomness(self._seeds, self._evaluations, self._missed)

    def _advance(self, active: Tensor | None) -> None:
        self._evaluations += 1
        if active is not None:
            absent = active.logical_not().long()
            self._missed = absent if self._missed is None else self._missed + absent

    @property
    def _shared_alone(self) -> Blocks:
        return "both" if self.personal is None else "shared"

    def _evaluated(self, w: Tensor, v: Tensor, batch: Minibatch, blocks: Blocks) -> Evaluation:
        result = self._evaluate(w, v, self.buffers, batch.data, blocks, self._randomness)
        self._advance(batch.active)
        self.buffers = batch.keep(result.buffers, self.buffers)
        self._count({"loss": result.loss, **result.scalars}, batch.active)
        return result

    def _personal_or_none(self, v: Tensor | None) -> Tensor:
        """The given personal blocks, those of the start of the round, or ``[S, 0]`` if the task has none."""
        given = self.personal if v is None else v
        return self._no_personal if given is None else given

    def _count(self, values: dict[str, Tensor], active: Tensor | None) -> None:
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)
        self._active.append(self._all_active if active is None else active.to(self._all_active))
