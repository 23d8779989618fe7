"""Clients whose personal parts differ in shape, each architecture a group of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any

from torch import Tensor, nn

from fedlightning.core.parameter_space import Layout, read
from fedlightning.federation.client_group import ClientGroup
from fedlightning.federation.client_table import mean_of_parts
from fedlightning.federation.cohort import Chunk, Cohort
from fedlightning.federation.oracle_selection import OracleSelection
from fedlightning.federation.protocol import Answer, Request, Stamp
from fedlightning.federation.validation import tensors_of
from fedlightning.models.per_architecture import TaskArchitectures
from fedlightning.oracle import Autocast, Cost


class Architectures:
    """Groups of clients, one an architecture, behind the interface of a single one.

    A group is made when the first of its clients is met. Its architecture is put into the task while it computes.

    Attributes:
        num_clients: N, of all architectures; None before the first round.
    """

    def __init__(self, task: nn.Module, make: Callable[[], ClientGroup]) -> None:
        """Begin with the first architecture.

        Args:
            task: Has :class:`~fedlightning.models.PerArchitecture`.
            make: Makes the group of the architecture that is in the task.
        """
        self._task = task
        self._choice = TaskArchitectures(task)
        self._make = make
        self._groups: dict[str, ClientGroup] = {}
        self._autocast: Autocast | None = None
        self.num_clients: int | None = None
        self._first = self._group(self._choice.first)
        self._told = Layout((), (), 0)

    @property
    def has_states(self) -> bool:
        """Whether there are states: from the first round on, or from a checkpoint."""
        return self.num_clients is not None

    @property
    def averaged_buffers(self) -> tuple[str, ...]:
        """Names of the changing buffers that the server averages."""
        known = self._known
        return self._told.names if known is None else known.averaged_buffers

    @property
    def changed_buffers(self) -> set[str]:
        """Names of all buffers the objective is known to change."""
        return set[str]().union(*(group.changed_buffers for group in self._groups.values()))

    @property
    def common_buffers(self) -> set[str]:
        """Return the names of the averaged buffers: those of personal layers differ by architecture."""
        return set(self.averaged_buffers)

    @property
    def start_state(self) -> Any:
        """The algorithm's state of a client before its first round; None for a stateless algorithm."""
        return self._first.start_state

    @property
    def start_buffers(self) -> Tensor:
        """The averaged buffers at the start, ``[b]``."""
        known = self._known
        return read(self._told, self._task, like=self._first.start_buffers) if known is None else known.start_buffers

    def use(self, autocast: Autocast) -> None:
        """Evaluate in this precision from now on."""
        self._autocast = autocast
        for group in self._groups.values():
            group.use(autocast)

    def of_architecture(self, name: str) -> ClientGroup:
        """The group of an architecture, whichever is active."""
        return self._group(name)

    @contextmanager
    def active(self, client: int) -> Iterator[ClientGroup]:
        """The group of a client, its architecture in the task for a while."""
        architecture = self._choice.of(client)
        with self._choice.activated(architecture):
            yield self._group(architecture)

    def join(self, chunk: Chunk, num_clients: int) -> Cost:
        """Look at the objective of a chunk's first client.

        Raises:
            IndexError: If some clients have no architecture.
        """
        self.num_clients = num_clients
        for client in range(num_clients):
            self._choice.of(client)
        with self.active(chunk.ids[0]) as group:
            return group.join(chunk, num_clients)

    def begin(self, buffers: Collection[str], num_clients: int) -> None:
        """Remember how many clients there are; a group makes room for their states when it is first met.

        The averaged buffers are remembered too: a process whose clients stay away from the first cohort has evaluated
        nothing that would tell them.
        """
        self.num_clients = num_clients
        with self._choice.activated(self._choice.first):
            space = self._first.space.of_active(self._task)
        space.restrict_buffers(buffers)
        self._told = space.buffers

    def answers(self, request: Request, cohort: Cohort, ways: OracleSelection) -> Iterator[Answer]:
        """What the clients of a cohort answer, one architecture after the other as they stand in it.

        Raises:
            ValueError: If clients of different architectures change different buffers of shared layers.
        """
        for architecture, members in groupby(cohort.members, lambda member: member.architecture):
            part = replace(cohort, members=tuple(members))
            self._choice.require(architecture)
            with self.active(part.members[0].id) as group:
                if not group.has_joined:
                    self._join_late(group, part, request, ways)
                yield from group.answers(request, part, ways)

    def settle(self, accepted: Mapping[int, Stamp]) -> bool:
        """Keep or drop pending states.

        Returns:
            Whether any state has changed.
        """
        changed = [group.settle(accepted) for group in self._groups.values()]
        return any(changed)

    def models(
        self, client_ids: Sequence[int], point: Tensor, buffers: Tensor | None, own: bool = True
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The models of clients of one architecture; see :meth:`ClientGroup.models`."""
        with self.active(client_ids[0]) as group:
            return group.models(client_ids, point, buffers, own)

    def mean_state(self) -> Any:
        """The algorithm's client state averaged over all N clients; None for a stateless algorithm."""
        return mean_of_parts([group.mean_state() for group in self._groups.values()], self.start_state)

    def all_states(self) -> Any:
        """The algorithm's states of all N clients, ``[N, ...]``; None for a stateless algorithm."""
        assert self.num_clients is not None
        start = tensors_of(self.start_state)
        states = {name: value.expand(self.num_clients, *value.shape).clone() for name, value in start.items()}
        for architecture, group in self._groups.items():
            own = [client for client in range(self.num_clients) if self._choice.of(client) == architecture]
            if group.has_states:
                for name, rows in tensors_of(group.client_state(group.states.rows(own))).items():
                    states[name][own] = rows
        return None if self.start_state is None else replace(self.start_state, **states)

    def state_dict(self) -> dict[str, Any]:
        """The states of each architecture that was met."""
        groups = {name: group.state_dict() for name, group in self._groups.items() if group.has_states}
        return {"clients": self.num_clients, "architectures": groups}

    def load_state_dict(self, state: Mapping[str, Any], keep: Collection[int] | None = None) -> None:
        """Restore what :meth:`state_dict` saved."""
        self.num_clients = state["clients"]
        for name, own in state["architectures"].items():
            with self._choice.activated(name):
                self._group(name).load_state_dict(own, keep)

    @property
    def _known(self) -> ClientGroup | None:
        """A group whose buffers are known; None before a client of this process was evaluated."""
        return next((group for group in self._groups.values() if group.has_states), None)

    def _group(self, architecture: str) -> ClientGroup:
        if architecture not in self._groups:
            with self._choice.activated(architecture):
                self._groups[architecture] = self._make()
            if self._autocast is not None:
                self._groups[architecture].use(self._autocast)
        return self._groups[architecture]

    def _join_late(self, group: ClientGroup, cohort: Cohort, request: Request, ways: OracleSelection) -> None:
        """Look at an architecture that the federation began without."""
        assert self.num_clients is not None
        averaged = self.averaged_buffers
        group.join(cohort.preview(1), self.num_clients)
        mine, theirs = set(group.averaged_buffers), set(averaged)
        if mine != theirs:
            raise ValueError(
                f"Client {cohort.members[0].id} changes buffer '{sorted(mine ^ theirs)[0]}', which clients of other "
                "architectures do not change, or the other way round, so it cannot be averaged. Set buffers to "
                "'local', or use layers without running statistics (GroupNorm, LayerNorm)."
            )
        ways.check_alone(group, cohort.preview(2), request)
