"""The states that clients keep from one round to the next, and the clients' models."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedlightning.algorithms.base import Algorithm, Reply
from fedlightning.core.errors import UsageError
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.federation.client_states import ClientStates, Rows, Storage
from fedlightning.federation.validation import require_start_state, tensors_of
from fedlightning.oracle import GradientOracle

Buffers = Literal["average", "local"]

_STATE = "state."
_PERSONAL = "personal"
_BUFFERS = "buffers"


class ClientTable:
    """Keeps the algorithm's state, the personal block and the local buffers of each client of one architecture.

    Attributes:
        task: The module with the objective.
        space: The task's parameters and, once clients have joined, the buffers that the objective changes.
        algorithm: Bound to the parameters of ``space``.
        averaged_buffers: Names of the buffers that the objective changes and the server averages.
        start_state: The algorithm's state of a client before its first round; None for a stateless algorithm.
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
        self.averaged_buffers: tuple[str, ...] = ()
        self.start_state = require_start_state(algorithm, algorithm.init_client(start.clone()))
        self._policy = buffers
        self._storage = storage
        self._personal = read(space.personal, task, like=start)
        self._start_buffers = start.new_empty(0)
        self._averaged = torch.empty(0, dtype=torch.long, device=start.device)  # indices of averaged elements
        self._states: ClientStates | None = None

    @property
    def has_states(self) -> bool:
        """True once client states exist: from the first round on, or after loading a checkpoint."""
        return self._states is not None

    @property
    def num_clients(self) -> int | None:
        """The number of clients N of the whole federation; None before the first round."""
        return None if self._states is None else self._states.clients

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
        stay = self.space.stay() | (self._policy == "local")
        self._averaged = (~stay).nonzero().flatten().to(self._averaged.device)
        self.averaged_buffers = () if self._policy == "local" else self.space.travelling_buffers
        self._start_buffers = read(self.space.buffers, self.task, like=self._personal)
        template = {_STATE + name: tensor for name, tensor in tensors_of(self.start_state).items()}
        template |= {_PERSONAL: self._personal} if self.space.personal.dim else {}
        template |= {_BUFFERS: self._start_buffers} if len(self._start_buffers) > len(self._averaged) else {}
        self._states = ClientStates(template, num_clients, self._storage)

    @property
    def changed_buffers(self) -> set[str]:
        """Names of all buffers that the objective changes; empty before the first round."""
        return set(self.space.buffers.names) if self.has_states else set()

    @property
    def common_buffers(self) -> set[str]:
        """Return the names of all changing buffers: every client has the same layers."""
        return self.changed_buffers

    @property
    def start_buffers(self) -> Tensor:
        """Initial values of the averaged buffers, ``[b]``."""
        return self._start_buffers[self._averaged]

    def start(self, point: Tensor, buffers: Tensor, num_clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the point, personal block and buffers of S clients before their first round.

        Args:
            point: The global model, ``[d]``.
            buffers: The server's averaged buffers.
            num_clients: S.

        Returns:
            New tensors ``[S, d]``, ``[S, p]`` and ``[S, b]``.
        """
        whole = self.with_own(buffers[None], {_BUFFERS: self._start_buffers[None]})[0]
        z, personal, own = (vector.expand(num_clients, -1).clone() for vector in (point, self._personal, whole))
        return z, personal, own

    def new_rows(self, reply: Reply, oracle: GradientOracle) -> Rows:
        """Collect what clients keep of a reply: algorithm state, personal block and local buffers."""
        rows: Rows = {_STATE + name: row for name, row in tensors_of(reply.state).items()}
        if reply.personal is not None:
            rows[_PERSONAL] = reply.personal
        if oracle.buffers.shape[1] > len(self._averaged):
            rows[_BUFFERS] = oracle.buffers
        return rows

    def personal_of(self, rows: Rows) -> Tensor | None:
        """Return the personal blocks among stored client states; None if the task has none."""
        return rows.get(_PERSONAL)

    def with_own(self, buffers: Tensor, rows: Rows) -> Tensor:
        """Combine the server's averaged ``buffers [S, b]`` with the local buffers among stored client states."""
        if len(self._averaged) == len(self._start_buffers):
            return buffers
        return rows[_BUFFERS].index_copy(1, self._averaged, buffers) if len(self._averaged) else rows[_BUFFERS]

    # ---- models ------------------------------------------------------------------------------------------------------

    def models(
        self, client_ids: Sequence[int], point: Tensor, buffers: Tensor | None, own: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return shared parameters ``[S, d]``, personal blocks ``[S, p]`` and buffers ``[S, b]`` of clients' models.

        Args:
            client_ids: Clients of this group.
            point: The global model, ``[d]``.
            buffers: The server's averaged buffers, ``[b]``; None if it has none yet.
            own: Whether to return the clients' personal models; otherwise the global model, with each client's personal
                block and local buffers.

        Returns:
            The three tensors; the buffers are None while they are still the task's own.
        """
        points, personal = (vector.expand(len(client_ids), -1) for vector in (point, self._personal))
        if self._states is None or buffers is None:  # before the first round all clients are at the start
            return points, personal, None
        rows = self._states.rows(client_ids)
        models = self.algorithm.personal_model(self.client_state(rows)) if own else None
        if models is not None:  # a client that never took part has only the global model
            seen = self._states.has_seen(client_ids).to(models.device)
            points = torch.where(seen[:, None], models, points)
        return points, rows.get(_PERSONAL, personal), self.with_own(buffers.expand(len(client_ids), -1), rows)

    def global_model(self, point: Tensor, buffers: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the global model ``[1, d]`` with the initial personal block and local buffers.

        The buffers are None while they are still the task's own.
        """
        if self._states is None or buffers is None:
            return point[None], self._personal[None], None
        template = {name: row[None] for name, row in self._states.template.items()}
        personal = template.get(_PERSONAL, self._personal[None])
        return point[None], personal, self.with_own(buffers[None], template)

    def client_state(self, rows: Rows) -> Any:
        """Convert stored fields to the algorithm's client state; None for a stateless algorithm."""
        if self.start_state is None:
            return None
        return type(self.start_state)(**{name: rows[_STATE + name] for name in tensors_of(self.start_state)})

    def mean_state(self) -> Any:
        """Return the mean of the algorithm's client states over all N clients; None for a stateless algorithm.

        Clients without a state in this process count with :attr:`start_state`.
        """
        return self.client_state(self.states.mean()) if self.has_states else self.start_state

    def all_states(self) -> Any:
        """Return the algorithm's states of all N clients, ``[N, ...]``; None for a stateless algorithm."""
        return self.client_state(self.states.rows(range(self.states.clients)))

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the clients seen, and the names of the buffers that the objective changes."""
        return {**self.states.state_dict(), "buffers": list(self.space.buffers.names)}

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
