"""The states that clients keep from one round to the next, and the clients' models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedlightning.algorithms.base import Algorithm, Reply
from fedlightning.core.errors import UsageError
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.federation.aggregation import finite_clients
from fedlightning.federation.buffers import Buffers, ClientBuffers
from fedlightning.federation.client_states import ClientStates, StatesByField, Storage
from fedlightning.federation.validation import require_start_state, tensors_of
from fedlightning.oracle import GradientOracle

_STATE = "state."
_PERSONAL = "personal"
_BUFFERS = "buffers"


class ClientTables(Protocol):
    """Keeps what clients of one architecture (:class:`ClientTable`) or of several have from one round to the next."""

    @property
    def has_states(self) -> bool:
        """True once client states exist: from the first round on, or after loading a checkpoint."""

    @property
    def num_clients(self) -> int | None:
        """The number of clients N of the whole federation; None before the first round."""

    @property
    def averaged_buffers(self) -> tuple[str, ...]:
        """Names of the buffers that the objective changes and the server averages."""

    @property
    def changed_buffers(self) -> set[str]:
        """Names of all buffers that the objective is known to change."""

    @property
    def common_buffers(self) -> set[str]:
        """Return the names of the buffers that clients of every process must change, or none of them."""

    @property
    def start_buffers(self) -> Tensor:
        """Initial values of the averaged buffers, ``[b]``."""

    @property
    def start_state(self) -> Any:
        """The algorithm's state of a client before its first round; None for a stateless algorithm."""

    def begin(self, buffers: Collection[str], num_clients: int) -> None:
        """Make room for client states, given the names of the buffers that the objective changes."""

    def models(
        self, client_ids: Sequence[int], point: Tensor, buffers: Tensor | None, own: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return shared parameters, personal blocks and buffers of the models of clients of one architecture."""

    def mean_state(self) -> Any:
        """Return the mean of the algorithm's client states over all N clients; None for a stateless algorithm.

        Clients without a state in this process count with the initial state.
        """

    def all_states(self) -> Any:
        """Return the algorithm's states of all N clients, ``[N, ...]``; None for a stateless algorithm."""

    def state_dict(self) -> dict[str, Any]:
        """Return all client states in plain types, with the number N under the key ``clients``."""

    def load_state_dict(self, state: Mapping[str, Any], keep: Collection[int] | None = None) -> None:
        """Restore client states that :meth:`state_dict` returned; ``keep`` names the clients to restore."""


class ClientTable:
    """Keeps the algorithm's state, the personal block and the local buffers of each client of one architecture.

    Attributes:
        task: The module with the objective.
        space: The task's parameters and, once clients have joined, the buffers that the objective changes.
        algorithm: Bound to the parameters of ``space``, with the hyper-parameters of the last round that has begun.
        start_state: The algorithm's state of a client before its first round; None for a stateless algorithm.
        start_personal: The personal block of a client before its first round, ``[p]``.
        evaluating: Names of the modules that were in evaluation mode in the last round, for algorithms whose clients
            adapt the model when they use it; empty for others.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: nn.Module,
        space: ParameterSpace,
        start: Tensor,
        buffers: Buffers = "average",
        storage: Storage | None = None,
    ) -> None:
        """Start without client states.

        Args:
            algorithm: Bound to the parameters of ``space``.
            task: A module with ``objective(batch)``.
            space: The task's parameters by block.
            start: The global model at the start, ``[d]``.
            buffers: What becomes of the buffers that the objective changes. With ``average`` the server averages them,
                except the buffers of personal layers; with ``local`` each client keeps its own.
            storage: Where client states lie; by default beside the model.
        """
        self.task = task
        self.space = space
        self.algorithm = algorithm
        self.start_state: Any = require_start_state(algorithm, algorithm.init_client(start.clone()))
        self._policy = buffers
        self._storage = storage
        self.start_personal = read(space.personal, task, like=start)
        self.evaluating: frozenset[str] = frozenset()
        self._buffers: ClientBuffers | None = None
        self._states: ClientStates | None = None

    @property
    def has_states(self) -> bool:
        """True once client states exist: from the first round on, or after loading a checkpoint."""
        return self._states is not None

    @property
    def num_clients(self) -> int | None:
        """The number of clients N of the whole federation; None before the first round."""
        return None if self._states is None else self._states.num_clients

    @property
    def states(self) -> ClientStates:
        """The states of all clients.

        Raises:
            RuntimeError: Before the first round.
        """
        if self._states is None:
            raise UsageError("Client states exist from the first round on.")
        return self._states

    def begin(self, buffers: Collection[str], num_clients: int) -> None:
        """Make room for client states, given the names of the buffers that the objective changes."""
        if self._states is not None:
            return
        self.space.restrict_buffers(buffers)
        self._buffers = ClientBuffers(self.space, self.task, self.start_personal, self._policy)
        template = {_STATE + name: tensor for name, tensor in tensors_of(self.start_state).items()}
        template |= {_PERSONAL: self.start_personal} if self.space.personal.dim else {}
        template |= {_BUFFERS: self._buffers.start} if self._buffers.has_local else {}
        self._states = ClientStates(template, num_clients, self._storage, self.start_personal.device)

    @property
    def changed_buffers(self) -> set[str]:
        """Names of all buffers that the objective changes; empty before the first round."""
        return set(self.space.buffers.names) if self.has_states else set()

    @property
    def common_buffers(self) -> set[str]:
        """Return the names of all changing buffers: every client has the same layers."""
        return self.changed_buffers

    @property
    def averaged_buffers(self) -> tuple[str, ...]:
        """Names of the buffers that the objective changes and the server averages; empty before the first round."""
        return () if self._buffers is None else self._buffers.averaged_names

    @property
    def start_buffers(self) -> Tensor:
        """Initial values of the averaged buffers, ``[b]``."""
        return self.buffers.start_of_averaged

    @property
    def buffers(self) -> ClientBuffers:
        """The buffers that the objective changes.

        Raises:
            RuntimeError: Before the first round.
        """
        if self._buffers is None:
            raise UsageError("Which buffers an objective changes is known from the first round on.")
        return self._buffers

    def start(self, point: Tensor, buffers: Tensor, num_clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the point, personal block and buffers of S clients before their first round.

        Args:
            point: The global model, ``[d]``.
            buffers: The server's averaged buffers.
            num_clients: S.

        Returns:
            New tensors ``[S, d]``, ``[S, p]`` and ``[S, b]``.
        """
        whole = self.buffers.joined(buffers[None], self.buffers.start[None])[0]
        z, personal, own = (vector.expand(num_clients, -1).clone() for vector in (point, self.start_personal, whole))
        return z, personal, own

    def new_states(self, reply: Reply, oracle: GradientOracle) -> tuple[StatesByField, Tensor | None]:
        """Collect what S clients keep of a reply: algorithm state, personal block and local buffers.

        Returns:
            The new states, and which clients' states are finite, ``[S]`` bool; None if all are.
        """
        states: StatesByField = {_STATE + name: value for name, value in tensors_of(reply.state).items()}
        if reply.personal is not None:
            states[_PERSONAL] = reply.personal
        if not self.buffers.has_local:
            return states, finite_clients(states)
        sound = finite_clients({**states, _BUFFERS: self.buffers.finite_at_first(oracle.buffers)})
        return {**states, _BUFFERS: oracle.buffers}, sound

    def own_of(self, states: StatesByField, averaged: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return what S clients keep beside the algorithm's state.

        Args:
            states: Their stored states.
            averaged: The server's averaged buffers for each of them, ``[S, a]``.

        Returns:
            Their personal blocks ``[S, p]``, None if the task has none, and all their buffers ``[S, b]``.
        """
        return states.get(_PERSONAL), self.buffers.joined(averaged, states.get(_BUFFERS))

    # ---- models ------------------------------------------------------------------------------------------------------

    def models(
        self, client_ids: Sequence[int], point: Tensor, buffers: Tensor | None, own: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return shared parameters ``[S, d]``, personal blocks ``[S, p]`` and buffers ``[S, b]`` of clients' models.

        Args:
            client_ids: Clients of this architecture.
            point: The global model, ``[d]``.
            buffers: The server's averaged buffers, ``[b]``; None if it has none yet.
            own: Whether to return the clients' personal models; otherwise the global model, with each client's personal
                block and local buffers.

        Returns:
            The three tensors; the buffers are None while they are still the task's own.
        """
        points, personal = (vector.expand(len(client_ids), -1) for vector in (point, self.start_personal))
        if self._states is None or buffers is None:  # before the first round all clients are at the start
            return points, personal, None
        states = self._states.of(client_ids)
        models = self.algorithm.personal_model(self.client_state(states)) if own else None
        if models is not None:  # a client that never took part has only the global model
            seen = self._states.has_seen(client_ids).to(models.device)
            points = torch.where(seen[:, None], models, points)
        kept, joined = self.own_of(states, buffers.expand(len(client_ids), -1))
        return points, personal if kept is None else kept, joined

    def global_model(self, point: Tensor, buffers: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the global model ``[1, d]`` with the initial personal block and local buffers.

        The buffers are None while they are still the task's own.
        """
        if self._states is None or buffers is None:
            return point[None], self.start_personal[None], None
        template = {name: start[None] for name, start in self._states.template.items()}
        personal, joined = self.own_of(template, buffers[None])
        return point[None], self.start_personal[None] if personal is None else personal, joined

    def client_state(self, states: StatesByField) -> Any:
        """Convert stored fields to the algorithm's client state; None for a stateless algorithm."""
        if self.start_state is None:
            return None
        return type(self.start_state)(**{name: states[_STATE + name] for name in tensors_of(self.start_state)})

    def mean_state(self) -> Any:
        """Return the mean of the algorithm's client states over all N clients; None for a stateless algorithm.

        Clients without a state in this process count with :attr:`start_state`.
        """
        return self.client_state(self.states.mean()) if self.has_states else self.start_state

    def all_states(self) -> Any:
        """Return the algorithm's states of all N clients, ``[N, ...]``; None for a stateless algorithm."""
        return self.client_state(self.states.of(range(self.states.num_clients)))

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the clients seen, and what their next use needs to know of the task."""
        evaluating = sorted(self.evaluating)
        return {**self.states.state_dict(), "buffers": list(self.space.buffers.names), "evaluating": evaluating}

    def load_state_dict(self, state: Mapping[str, Any], keep: Collection[int] | None = None) -> None:
        """Restore the client states that :meth:`state_dict` returned.

        Args:
            state: What was saved.
            keep: Clients whose states lie in this process; None for all.

        Raises:
            ValueError: If the number of clients, the fields or their shapes differ.
        """
        self.begin(state["buffers"], state["clients"])
        self.states.load_state_dict(state, keep)
        self.evaluating = frozenset(state.get("evaluating", ()))


def mean_of_parts(means: Sequence[Any], start: Any) -> Any:
    """Combine means that each know only some of the clients into the mean over all N clients.

    Args:
        means: Mean client states, dataclasses of tensors. Each is over all N clients, but takes the clients it does not
            know at the start; every client is known to at most one.
        start: The state of a client before its first round; None for a stateless algorithm.

    Returns:
        A client state; None for a stateless algorithm.
    """
    if start is None:
        return None
    parts = [tensors_of(mean) for mean in means]
    return replace(
        start,
        **{
            name: value + torch.stack([part[name] - value for part in parts]).sum(0)
            for name, value in tensors_of(start).items()
        },
    )
