"""What an algorithm's clients make of a broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import fields, replace
from typing import Any

from fedlightning.algorithms.base import Algorithm, PerClient, Reply
from fedlightning.core.seeding import derive_seed
from fedlightning.federation.client_states import StatesByField
from fedlightning.federation.clients.client_table import ClientTable
from fedlightning.federation.clients.unread import UnreadSettings
from fedlightning.federation.protocol import Request
from fedlightning.federation.validation import (
    absent_state_named,
    attributes_named,
    require_client_state,
    require_reply,
    tensors_of,
)
from fedlightning.oracle import GradientOracle
from fedlightning.oracle.base import Evaluate
from fedlightning.oracle.evaluations import ClientData


def updated(
    table: ClientTable,
    algorithm: Algorithm,
    request: Request,
    ids: Sequence[int],
    data: ClientData,
    evaluate: Evaluate,
    evaluate_full: Evaluate | None = None,
    states: StatesByField | None = None,
    seeds: Sequence[int] | None = None,
) -> tuple[Reply, GradientOracle]:
    """Run the client update of a phase, which leaves what the clients keep as it is.

    Args:
        table: What the clients keep.
        algorithm: The algorithm as it is in this round.
        request: What the server asks of the clients.
        ids: Numbers of the clients.
        data: Their data.
        evaluate: Computes operators on minibatches.
        evaluate_full: Computes operators on all data of a client; ``evaluate`` if None.
        states: What the clients keep, ``[S, ...]`` each; None for what the table has.
        seeds: Seeds of the random numbers that they draw; None for :func:`seed_of` each.

    Returns:
        The reply, and the oracle with what it has counted.
    """
    states = table.states.of(ids) if states is None else states
    personal, buffers = table.own_of(states, request.buffers.expand(len(ids), -1))
    oracle = GradientOracle(
        data,
        evaluate,
        buffers=buffers,
        personal=personal,
        evaluate_full=evaluate_full,
        seeds=[seed_of(request, client) for client in ids] if seeds is None else seeds,
        averaged=table.buffers.averaged,
    )
    if algorithm.binding is not None and not algorithm.binding.varies_step_sizes_alone:
        oracle.steps_together = 0  # its numbers would be compiled anew in every round
    message, state = for_clients(request.message, ids), table.client_state(states)
    update = algorithm.phases[request.stamp.phase].client_update
    with attributes_named(algorithm), absent_state_named(algorithm, update, state):
        return update(message, state, oracle), oracle


def seed_of(request: Request, client: int) -> int:
    """Return the seed of the random numbers that a client's update draws, not its objective's."""
    return derive_seed(request.seed, client, 2)


class Updates:
    """Runs client updates whose replies count, and checks these."""

    def __init__(self, table: ClientTable) -> None:
        """Begin before the first round.

        Args:
            table: What the clients keep.
        """
        self._table, self._unread = table, UnreadSettings()

    def of(
        self,
        request: Request,
        ids: Sequence[int],
        data: ClientData,
        evaluate: Evaluate,
        evaluate_full: Evaluate | None = None,
    ) -> tuple[Reply, GradientOracle]:
        """Run the client update of a phase; see :func:`updated`.

        Raises:
            TypeError: If the reply is not what the contract promises.
            ValueError: If a shape is wrong, or the update does without a setting of the clients' steps.
        """
        table, phase = self._table, request.stamp.phase
        algorithm, space = table.algorithm, table.space
        with self._unread.watched(algorithm):
            reply, oracle = updated(table, algorithm, request, ids, data, evaluate, evaluate_full)
        is_last = phase == len(algorithm.phases) - 1
        require_reply(algorithm, reply, len(ids), space.personal.dim, is_last, space.shared.dim)
        require_client_state(algorithm, table.start_state, reply.state, is_last)
        self._unread.require_read(algorithm, phase, oracle)
        return reply, oracle


class Received:
    """Gives each client update the message as it was sent; an update may write into it."""

    def __init__(self, message: Any) -> None:
        """Keep a message, of which receivers get copies: one for all while nobody writes into it."""
        self._sent = message
        self._copy: Any = None
        self._versions: list[int] = []

    @property
    def message(self) -> Any:
        """Return the message in tensors that are not the server's."""
        if self._copy is None or _versions(self._copy) != self._versions:
            self._copy = _copied(self._sent)
            self._versions = _versions(self._copy)
        return self._copy


def _versions(message: Any) -> list[int]:
    """Return numbers that are others as soon as something is written into a tensor of a message."""
    return [] if message is None else [tensor._version for tensor in tensors_of(message).values()]


def _copied(message: Any) -> Any:
    if message is None:
        return None
    received = copy(message)
    for name, tensor in tensors_of(message).items():
        object.__setattr__(received, name, tensor.clone())
    return received


def for_clients(message: Any, client_ids: Sequence[int]) -> Any:
    """Return a broadcast as the given clients receive it, with each client's own :class:`PerClient` values."""
    own = {
        each.name: value.of(client_ids)
        for each in fields(message)
        if isinstance(value := getattr(message, each.name), PerClient)
    }
    return replace(message, **own) if own else message
