"""What clients keep from one round to the next, and the models they stand for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedlightning.algorithms.base import Algorithm, Reply
from fedlightning.core.parameter_space import ParameterSpace, read
from fedlightning.federation.client_states import ClientStates, Rows, Storage
from fedlightning.federation.validation import tensors_of
from fedlightning.oracle import GradientOracle

Buffers = Literal["average", "local"]

_STATE = "state."
_PERSONAL = "personal"
_BUFFERS = "buffers"


class ClientTable:
    """A row for each client of one architecture: the algorithm's state, its personal block, the buffers that stay.

    Attributes:
        task: The module with the objective.
        space: Its parameters and, once clients have joined, the buffers the objective changes.
        algorithm: Bound to these parameters.
        averaged_buffers: Names of the changing buffers that the server averages.
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
        """Begin with no client seen.

        Args:
            algorithm: Bound to the parameters of ``space``.
            task: A module with ``objective(batch)``.
            space: Its parameters by block.
            start: The global model at the start, ``[d]``.
            buffers: What becomes of buffers the objective changes: averaged, but for those of personal layers, or all
                kept by each client.
            storage: Where client states lie.
        """
        self.task = task
        self.space = space
        self.algorithm = algorithm
        self.averaged_buffers: tuple[str, ...] = ()
        self.start_state = algorithm.init_client(start.clone())
        self._policy = buffers
        self._storage = storage
        self._personal = read(space.personal, task, like=start)
        self._start_buffers = start.new_empty(0)
        self._averaged = torch.empty(0, dtype=torch.long, device=start.device)  # their places among the buffers
        self._states: ClientStates | None = None

    @property
    def has_states(self) -> bool:
        """Whether there are states: from the first round on, or from a checkpoint."""
        return self._states is not None

    @property
    def num_clients(self) -> int | None:
        """N, of the whole federation; None before the first round."""
        return None if self._states is None else self._states.clients

    @property
    def states(self) -> ClientStates:
        """The rows of all clients.

        Raises:
            RuntimeError: Before the first round.
        """
        if self._states is None:
            raise RuntimeError("Client states exist from the first round on.")
        return self._states

    def begin(self, buffers: Collection[str], num_clients: int) -> None:
        """Make room for the states of clients whose objective changes these buffers."""
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
        """Names of all buffers the objective changes."""
        return set(self.space.buffers.names) if self.has_states else set()

    @property
    def common_buffers(self) -> set[str]:
        """Return the names of all changing buffers: every client has the same layers."""
        return self.changed_buffers

    @property
    def start_buffers(self) -> Tensor:
        """The averaged buffers at the start, ``[b]``."""
        return self._start_buffers[self._averaged]

    def start(self, point: Tensor, buffers: Tensor, num_clients: int) -> tuple[Tensor, Tensor, Tensor]:
        """Point, personal block and buffers of a client before its first round, a copy for each of ``num_clients``."""
        whole = self.with_own(buffers[None], {_BUFFERS: self._start_buffers[None]})[0]
        z, personal, own = (vector.expand(num_clients, -1).clone() for vector in (point, self._personal, whole))
        return z, personal, own

    def new_rows(self, reply: Reply, oracle: GradientOracle) -> Rows:
        """What clients keep of a reply."""
        rows: Rows = {_STATE + name: row for name, row in tensors_of(reply.state).items()}
        if reply.personal is not None:
            rows[_PERSONAL] = reply.personal
        if oracle.buffers.shape[1] > len(self._averaged):
            rows[_BUFFERS] = oracle.buffers
        return rows

    def personal_of(self, rows: Rows) -> Tensor | None:
        """The personal blocks among stored rows; None if the task has none."""
        return rows.get(_PERSONAL)

    def with_own(self, buffers: Tensor, rows: Rows) -> Tensor:
        """The server's averaged ``buffers [S, b]`` together with those of the clients that stay with them."""
        if len(self._averaged) == len(self._start_buffers):
            return buffers
        return rows[_BUFFERS].index_copy(1, self._averaged, buffers) if len(self._averaged) else rows[_BUFFERS]

    # ---- models ------------------------------------------------------------------------------------------------------

    def models(
        self, client_ids: Sequence[int], point: Tensor, buffers: Tensor | None, own: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Shared parameters ``[S, d]``, personal blocks ``[S, p]`` and buffers ``[S, b]`` of clients' models.

        Args:
            client_ids: Clients of this group.
            point: The global model, ``[d]``.
            buffers: The server's averaged buffers, ``[b]``; None if it has none yet.
            own: Their personal models; else the global one, beside their personal blocks and local buffers.

        Returns:
            The three; None for buffers that are still the task's own.
        """
        points, personal = (vector.expand(len(client_ids), -1) for vector in (point, self._personal))
        if self._states is None or buffers is None:  # before the first round all stand at the start
            return points, personal, None
        rows = self._states.rows(client_ids)
        models = self.algorithm.personal_model(self.client_state(rows)) if own else None
        if models is not None:  # who never took part has no model beside the global one
            seen = self._states.has_seen(client_ids).to(models.device)
            points = torch.where(seen[:, None], models, points)
        return points, rows.get(_PERSONAL, personal), self.with_own(buffers.expand(len(client_ids), -1), rows)

    def global_model(self, point: Tensor, buffers: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """The global model ``[1, d]`` with the personal block and the local buffers of the start."""
        if self._states is None or buffers is None:
            return point[None], self._personal[None], None
        template = {name: row[None] for name, row in self._states.template.items()}
        personal = template.get(_PERSONAL, self._personal[None])
        return point[None], personal, self.with_own(buffers[None], template)

    def client_state(self, rows: Rows) -> Any:
        """Stored rows as the algorithm's client state; None for a stateless algorithm."""
        if self.start_state is None:
            return None
        return type(self.start_state)(**{name: rows[_STATE + name] for name in tensors_of(self.start_state)})

    def mean_state(self) -> Any:
        """The algorithm's client state averaged over all N clients, those not here at the start; None if stateless."""
        return self.client_state(self.states.mean()) if self.has_states else self.start_state

    def all_states(self) -> Any:
        """The algorithm's states of all N clients, ``[N, ...]``; None for a stateless algorithm."""
        return self.client_state(self.states.rows(range(self.states.clients)))

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The states of the clients seen, and the buffers their objective changes."""
        return {**self.states.state_dict(), "buffers": list(self.space.buffers.names)}

    def load_state_dict(self, state: Mapping[str, Any], keep: Collection[int] | None = None) -> None:
        """Restore what :meth:`state_dict` saved.

        Args:
            state: What was saved.
            keep: Clients whose states lie in this process; None for all.

        Raises:
            ValueError: If the number of clients, the fields or their shapes differ.
        """
        self.begin(state["buffers"], state["clients"])
        self.states.load_state_dict(state, keep)


def mean_of_parts(means: Sequence[Any], start: Any) -> Any:
    """The mean over all N clients from means that each know some of them and take the others at the start.

    Args:
        means: Client states, dataclasses of tensors.
        start: The state of a client before its first round; None for a stateless algorithm.
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
