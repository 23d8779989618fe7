"""Clients whose personal parts differ in shape, in one group for each architecture."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any

from torch import Tensor, nn

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.parameter_space import Layout
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.core.settings import settings
from fedlightning.federation.buffers import averaged_buffers
from fedlightning.federation.clients.client_group import ClientGroup
from fedlightning.federation.clients.client_table import mean_of_parts
from fedlightning.federation.clients.oracle_selection import OracleSelection
from fedlightning.federation.protocol import Answer, Request, Stamp
from fedlightning.federation.sampling.cohort import Chunk, Cohort
from fedlightning.federation.validation import tensors_of
from fedlightning.oracle import Autocast, Cost


class GroupsByArchitecture:
    """Holds a group of clients for every architecture, made when the first of its clients is met.

    Attributes:
        met: The groups made so far, by architecture.
        first: The group of the first architecture, which the global model has active.
    """

    def __init__(self, choice: TaskArchitectures, make: Callable[[], ClientGroup]) -> None:
        """Make the group of the first architecture.

        Args:
            choice: The architectures of the task.
            make: Makes the group of the architecture that is active in the task.
        """
        self._choice = choice
        self._make = make
        self._autocast: Autocast | None = None
        self.met: dict[str, ClientGroup] = {}
        self.first = self.of(choice.first)

    def of(self, architecture: str) -> ClientGroup:
        """Return the group of an architecture, whichever one is active."""
        if architecture not in self.met:
            with self._choice.activated(architecture):
                group = self._make()
            if self.met:
                _require_equal_states(self._choice.first, self.first, architecture, group)
            self.met[architecture] = group
            if self._autocast is not None:
                self.met[architecture].use(self._autocast)
        return self.met[architecture]

    def use(self, autocast: Autocast) -> None:
        """Evaluate in this precision from now on, in groups yet to be made too."""
        self._autocast = autocast
        for group in self.met.values():
            group.use(autocast)

    @property
    def informed(self) -> ClientGroup | None:
        """A group that knows which buffers change; None before a client of this process was evaluated."""
        return next((group for group in self.met.values() if group.table.has_states), None)


class TablesByArchitecture:
    """Shows the tables of several architectures through the interface of a single :class:`ClientTable`.

    Attributes:
        num_clients: Number N of clients of all architectures; None before the first round.
    """

    def __init__(self, task: nn.Module, choice: TaskArchitectures, groups: GroupsByArchitecture) -> None:
        """Start before the first round.

        Args:
            task: A module with :class:`~fedlightning.models.PerArchitecture` parts.
            choice: The architectures of the task.
            groups: The groups of clients, each with its table.
        """
        self.num_clients: int | None = None
        self._task = task
        self._choice = choice
        self._groups = groups
        self._told = Layout((), (), 0)

    @property
    def has_states(self) -> bool:
        """Return whether client states exist: from the first round on, or from a checkpoint."""
        return self.num_clients is not None

    @property
    def averaged_buffers(self) -> tuple[str, ...]:
        """Return the names of the changing buffers that the server averages."""
        group = self._groups.informed
        return self._told.names if group is None else group.table.averaged_buffers

    @property
    def changed_buffers(self) -> set[str]:
        """Return the names of all buffers that the objective is known to change."""
        return set[str]().union(*(group.table.changed_buffers for group in self._groups.met.values()))

    @property
    def common_buffers(self) -> set[str]:
        """Return the names of the averaged buffers: those of personal layers differ by architecture."""
        return set(self.averaged_buffers)

    @property
    def start_state(self) -> Any:
        """Return the algorithm's state of a client before its first round; None for a stateless algorithm."""
        return self._groups.first.table.start_state

    @property
    def start_buffers(self) -> Tensor:
        """Return the averaged buffers at the start, ``[b]``."""
        group = self._groups.informed
        if group is None:
            return averaged_buffers(self._told, self._task)
        return group.table.start_buffers

    def begin(self, buffers: Collection[str], num_clients: int) -> None:
        """Remember the number of clients; each group makes room for client states when its first client is met.

        The averaged buffers are remembered too: a process whose clients stay away from the first cohort has evaluated
        no objective that would tell them.
        """
        self.num_clients = num_clients
        with self._choice.activated(self._choice.first):
            space = self._groups.first.table.space.of_active(self._task)
        space.restrict_buffers(buffers)
        self._told = space.buffers

    def models(
        self, client_ids: Sequence[int], point: Tensor, buffers: Tensor | None, own: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the models of clients of one architecture; see :meth:`ClientTable.models`."""
        architecture = self._choice.of(client_ids[0])
        with self._choice.activated(architecture):
            return self._groups.of(architecture).table.models(client_ids, point, buffers, own)

    def mean_state(self) -> Any:
        """Return the algorithm's client state averaged over all N clients; None for a stateless algorithm."""
        return mean_of_parts([group.table.mean_state() for group in self._groups.met.values()], self.start_state)

    def all_states(self) -> Any:
        """Return the algorithm's states of all N clients, ``[N, ...]``; None for a stateless algorithm."""
        assert self.num_clients is not None
        start = tensors_of(self.start_state)
        states = {name: value.expand(self.num_clients, *value.shape).clone() for name, value in start.items()}
        for architecture, group in self._groups.met.items():
            own = [client for client in range(self.num_clients) if self._choice.of(client) == architecture]
            if group.table.has_states:
                for name, values in tensors_of(group.table.client_state(group.table.states.of(own))).items():
                    states[name][own] = values
        return None if self.start_state is None else replace(self.start_state, **states)

    def state_dict(self) -> dict[str, Any]:
        """Return the client states of every architecture met so far."""
        groups = {name: group.table.state_dict() for name, group in self._groups.met.items() if group.table.has_states}
        return {"clients": self.num_clients, "architectures": groups}

    def load_state_dict(self, state: Mapping[str, Any], keep: Collection[int] | None = None) -> None:
        """Restore the client states that :meth:`state_dict` returned.

        Args:
            state: The saved states.
            keep: Clients whose states lie in this process; None for all.
        """
        self.num_clients = state["clients"]
        for name, own in state["architectures"].items():
            with self._choice.activated(name):
                self._groups.of(name).table.load_state_dict(own, keep)


class Architectures:
    """Shows clients of several architectures through the interface of a single :class:`ClientGroup`.

    The architecture of a group is active in the task while the group computes.

    Attributes:
        table: What the clients keep from one round to the next.
    """

    def __init__(self, task: nn.Module, make: Callable[[], ClientGroup]) -> None:
        """Start with the first architecture.

        Args:
            task: A module with :class:`~fedlightning.models.PerArchitecture` parts.
            make: Makes the group of the architecture that is active in the task.
        """
        self._choice = TaskArchitectures(task)
        self._groups = GroupsByArchitecture(self._choice, make)
        self.table = TablesByArchitecture(task, self._choice, self._groups)

    def use(self, autocast: Autocast) -> None:
        """Evaluate objectives in this precision from now on."""
        self._groups.use(autocast)

    def of_architecture(self, name: str) -> ClientGroup:
        """Return the group of an architecture, whichever one is active."""
        return self._groups.of(name)

    @contextmanager
    def active(self, client: int) -> Iterator[ClientGroup]:
        """Make a client's architecture the active one for a while, and return the group of the client."""
        architecture = self._choice.of(client)
        with self._choice.activated(architecture):
            yield self._groups.of(architecture)

    def join(self, chunk: Chunk, num_clients: int) -> tuple[Cost, float]:
        """Evaluate the objective for the first client of a chunk, to learn which buffers change, the cost and the loss.

        Raises:
            IndexError: If a client has no architecture.
        """
        for client in range(num_clients):
            self._choice.of(client)
        with self.active(chunk.ids[0]) as group:
            return group.join(chunk, num_clients)

    def answers(self, request: Request, cohort: Cohort, selection: OracleSelection) -> Iterator[Answer]:
        """Yield the answers of a cohort's clients, one architecture after the other in the order of the cohort.

        Raises:
            ValueError: If clients of different architectures change different buffers of shared layers.
        """
        for architecture, members in groupby(cohort.members, lambda member: member.architecture):
            part = replace(cohort, members=tuple(members))
            self._choice.require(architecture)
            with self.active(part.members[0].id) as group:
                if not group.has_joined:
                    self._join_late(group, part, request, selection)
                yield from group.answers(request, part, selection)

    def settle(self, accepted: Mapping[int, Stamp]) -> bool:
        """Keep the pending states of accepted clients, and drop all others.

        Returns:
            Whether any client state has changed in a way that :meth:`undo` does not take back.
        """
        changed = [group.settle(accepted) for group in self._groups.met.values()]
        return any(changed)

    def undo(self, index: int) -> None:
        """Drop pending states, and put clients back to where they were before the phases of a round."""
        for group in self._groups.met.values():
            group.undo(index)

    def _join_late(self, group: ClientGroup, cohort: Cohort, request: Request, selection: OracleSelection) -> None:
        """Evaluate the objective of an architecture that had no client when the federation began.

        Raises:
            ValueError: If it changes other buffers of shared layers than the architectures before.
        """
        assert self.table.num_clients is not None
        averaged = self.table.averaged_buffers
        group.join(cohort.preview(1), self.table.num_clients)
        mine, theirs = set(group.table.averaged_buffers), set(averaged)
        if mine != theirs:
            raise InvalidValueError(
                f"Client {cohort.members[0].id} changes buffer '{sorted(mine ^ theirs)[0]}', which clients of other "
                "architectures do not change, or the other way round, so it cannot be averaged. Set "
                f"{settings({'model.buffers': 'local'})}, or use layers without running statistics (GroupNorm, "
                "LayerNorm)."
            )
        selection.check_alone(group, cohort.preview(2), request)


def _require_equal_states(one: str, first: ClientGroup, other: str, group: ClientGroup) -> None:
    """Check that the algorithm keeps the same of clients of two architectures.

    Raises:
        ValueError: If its client states depend on the personal parameters.
    """
    shapes = [
        {} if state is None else {name: list(tensor.shape) for name, tensor in tensors_of(state).items()}
        for state in (first.table.start_state, group.table.start_state)
    ]
    for name, shape in shapes[0].items():
        if shapes[1].get(name) != shape:
            raise InvalidValueError(
                f"{type(first.table.algorithm).__name__} keeps '{name}' of every client, with shape {shape} for "
                f"architecture '{one}' and {shapes[1].get(name)} for '{other}': it does not train personal parameters "
                "that differ in shape by client. Use another algorithm, or one architecture."
            )
