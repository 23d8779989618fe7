"""Evaluates a chunk's clients on a minibatch or on all data, and skips clients that are done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.oracle.base import Blocks, Evaluate, Evaluation, PrefersFixedSize
from fedlightning.oracle.errors import ObjectiveError
from fedlightning.oracle.minibatch import Minibatch, Rows, few_places
from fedlightning.oracle.randomness import Randomness


class ClientData(Protocol):
    """Provides the data of S clients in one round; see :class:`fedlightning.federation.sampling.cohort.Chunk`."""

    @property
    def steps(self) -> Tensor:
        """Return the number of minibatches of each client, ``[S]``, in the parameters' dtype."""

    def __len__(self) -> int:
        """Return the number S of clients."""

    def minibatches(self) -> Iterator[Minibatch]:
        """Yield K minibatches; clients with fewer are marked inactive at the end."""

    def full(self) -> Iterator[tuple[Tensor, Any]]:
        """Yield all data of every client in groups of clients of equal size, as (positions in the chunk, data)."""


def evaluate_minibatch(
    evaluate: Evaluate,
    batch: Minibatch,
    w: Tensor,
    v: Tensor,
    buffers: Tensor,
    blocks: Blocks,
    randomness: Randomness,
) -> Evaluation:
    """Evaluate the clients that a minibatch is computed for; all others get zeros.

    Args:
        evaluate: Computes operators.
        batch: A minibatch of S clients.
        w: Points, ``[S, d]``.
        v: Personal blocks, ``[S, p]``.
        buffers: Buffers, ``[S, b]``.
        blocks: The gradients to compute.
        randomness: Each client's random numbers.

    Raises:
        ValueError: If the points are no matrix of S rows.
    """
    _require_points(w, len(buffers))
    rows = batch.computed
    with places_named(rows):
        own = some(w, rows), some(v, rows), some(buffers, rows)
        part = evaluate(*own, batch.computed_data, blocks, drawn_by(rows, randomness))
    return part if rows is None else part.among(rows, len(w))


def evaluate_all_data(
    evaluate: Evaluate,
    data: ClientData,
    w: Tensor,
    v: Tensor,
    buffers: Tensor,
    randomness: Randomness,
    active: Tensor | None = None,
) -> Evaluation:
    """Evaluate clients on all of their data, in groups of clients of equal size.

    Args:
        evaluate: Computes operators.
        data: The data of S clients.
        w: Points, ``[S, d]``.
        v: Personal blocks, ``[S, p]``.
        buffers: Buffers, ``[S, b]``.
        randomness: Each client's random numbers.
        active: ``[S]`` bool, the clients that are evaluated, and perhaps others; None for all.

    Returns:
        Operators in both blocks and the values of f_i, zeros for clients that were left out. The buffers are those
        given: an evaluation on all data is no training step, so that running statistics stay as they are.

    Raises:
        ValueError: If the points are no matrix of S rows.
    """
    _require_points(w, len(buffers))
    g, g_v = torch.zeros_like(w), torch.zeros_like(v)
    values: dict[str, Tensor] = {}
    going = [True] * len(w) if active is None else active.tolist()
    leaves_out = leaves_out_done(evaluate)
    for where, group in data.full():
        members = where.tolist()
        needed = [going[place] for place in members]
        if not any(needed):
            continue
        chosen = few_places(needed, range(len(members))) if leaves_out else range(len(members))
        samples = group if len(chosen) == len(members) else Rows.at(chosen, w.device).of(group)
        rows = Rows.at([members[place] for place in chosen], w.device)
        own = some(w, rows), some(v, rows), some(buffers, rows)
        with places_named(rows):
            result = evaluate(*own, samples, "both", randomness.of(rows.places))
        g[rows.index], g_v[rows.index] = result.g, result.g_personal
        for name, value in {"loss": result.loss, **result.scalars}.items():
            values.setdefault(name, value.new_zeros(len(w)))[rows.index] = value
    loss = values.pop("loss") if values else w.new_zeros(len(w))
    return Evaluation(g, g_v, buffers, loss, values)


def _require_points(w: Tensor, clients: int) -> None:
    if w.dim() != 2 or len(w) != clients:
        raise InvalidValueError(
            f"client_update gives the oracle points of shape {list(w.shape)}; expected [{clients}, d], one row for "
            f"each of the S={clients} clients. Begin at z.expand(oracle.num_clients, -1) from a model z [d], and see "
            "that init_client returns the state of one client: a field [d] of it arrives as [S, d]."
        )


@contextmanager
def places_named(rows: Rows | None) -> Iterator[None]:
    """Let an error that is about one of some clients tell the client's place in the chunk."""
    try:
        yield
    except ObjectiveError as error:
        if error.place is not None and rows is not None:
            error.place = rows.places[error.place]
        raise


def some(values: Tensor, rows: Rows | None) -> Tensor:
    """Return some rows of a tensor, all if None."""
    return values if rows is None else values[rows.index]


def drawn_by(rows: Rows | None, randomness: Randomness) -> Randomness:
    """Return the random numbers of some clients, of all if None."""
    return randomness if rows is None else randomness.of(rows.places)


def leaves_out_done(evaluate: Evaluate) -> bool:
    """Return whether it pays to leave out clients that are done early."""
    return evaluate.leaves_out_done if isinstance(evaluate, PrefersFixedSize) else True
