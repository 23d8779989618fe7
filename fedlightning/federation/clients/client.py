"""The client half of a federation: the clients whose data and states lie in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedlightning.algorithms.adaptation import AdaptsInUse
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.modules import named_buffers, named_parameters
from fedlightning.federation.clients.adapting import TrainingData, adapted
from fedlightning.federation.clients.client_group import ClientGroup
from fedlightning.federation.clients.client_table import ClientTables, mean_of_parts
from fedlightning.federation.clients.oracle_selection import OracleSelection
from fedlightning.federation.clients.received import ReceivedCopies
from fedlightning.federation.processes import Processes
from fedlightning.federation.protocol import Answer, Parameter, Precision, Request, Roster, Stamp
from fedlightning.federation.sampling.cohort import Chunk, Cohort
from fedlightning.oracle import Autocast, Cost
from fedlightning.oracle.effects.side_effects import released
from fedlightning.oracle.errors import begins_to_write
from fedlightning.oracle.objective import name_of_objective
from fedlightning.oracle.python_generators import python_generators_restored

Models = tuple[Tensor, Tensor, Tensor | None]
"""Shared parameters ``[S, d]``, personal blocks ``[S, p]``, buffers ``[S, b]`` (None while they are the task's own)."""


class Clients(Protocol):
    """Computes for clients of one architecture (:class:`ClientGroup`) or of several (:class:`Architectures`)."""

    @property
    def table(self) -> ClientTables:
        """What the clients keep from one round to the next."""

    def use(self, autocast: Autocast) -> None:
        """Set the precision of all evaluations from now on."""

    def active(self, client: int) -> AbstractContextManager[ClientGroup]:
        """Yield the group of a client while the client's architecture is active in the task."""

    def of_architecture(self, name: str) -> ClientGroup:
        """Return the group of the named architecture, whether or not the architecture is active."""

    def join(self, chunk: Chunk, num_clients: int) -> tuple[Cost, float]:
        """Evaluate the objective once for a chunk's first client, and return the cost of a gradient and the loss."""

    def answers(self, request: Request, cohort: Cohort, selection: OracleSelection) -> Iterator[Answer]:
        """Yield the answers of a cohort's clients; new client states are pending until :meth:`settle`."""

    def settle(self, accepted: Mapping[int, Stamp]) -> bool:
        """Keep the pending states of accepted clients and drop all others; return whether any has changed for good."""

    def undo(self, index: int) -> None:
        """Drop pending states, and put clients back to where they were before the phases of a round."""


class ClientRunner:
    """Answers the server's requests for all clients of this process, for one client or ten thousand.

    Attributes:
        clients: The clients, and what they keep.
        oracle_selection: How the clients' operators are computed.
        has_joined: Whether :meth:`join` has found out which buffers the objective changes.
    """

    def __init__(
        self,
        task: nn.Module,
        clients: Clients,
        selection: OracleSelection,
        processes: Processes,
        parameters: tuple[Parameter, ...],
        training_data: Callable[[], TrainingData | None] = lambda: None,
        received: ReceivedCopies | None = None,
    ) -> None:
        """Start before the first round.

        Args:
            task: The module with the objective.
            clients: Compute answers, and keep states.
            selection: How operators are computed.
            processes: All processes that hold clients of the same federation.
            parameters: The shared parameters, for the roster.
            training_data: Returns on what clients adapt the global model; None if these data are not at hand.
            received: The task's copies of what clients receive; None if it has none.
        """
        self.clients = clients
        self.oracle_selection = selection
        self._task = task
        self._processes = processes
        self._parameters = parameters
        self._training_data = training_data
        self._received = received
        self.has_joined = False
        self._cost: Cost | None = None

    def join(self, cohort: Cohort, samples: Tensor, precision: Precision) -> Roster:
        """Find out which buffers the objective changes; every process must call this, so that all agree.

        Args:
            cohort: This process's part of the first cohort.
            samples: Every client's number of samples, ``[N]``.
            precision: Precision of the objective.

        Raises:
            ObjectiveError: If the objective fails for the cohort's first client.
            ValueError: If the processes disagree on the buffers.
        """
        self.clients.use(precision.on(cohort.device))
        loss = None
        with self._undisturbed(cohort.device):
            if len(cohort):
                self._cost, loss = self.clients.join(cohort.preview(1), len(samples))
        changed = sorted(self.clients.table.common_buffers) if len(cohort) else None
        found = [names for names in self._processes.collect(changed) if names is not None]
        if any(names != found[0] for names in found):
            different = sorted(set(found[0]).symmetric_difference(next(n for n in found if n != found[0])))
            raise InvalidValueError(
                f"The objective changes buffer '{different[0]}' for some clients and not for others, so it cannot be "
                "averaged. Write into it in every call, or set buffers to 'local' and use one device."
            )
        self.clients.table.begin(found[0], len(samples))
        self.has_joined = True
        loss = self._processes.agree(loss)
        table = self.clients.table
        return Roster(samples, table.averaged_buffers, table.start_buffers, loss, self._parameters, tuple(found[0]))

    def train(self, request: Request, cohort: Cohort) -> Iterator[Answer]:
        """Yield the answers of this process's clients, in the order of the cohort.

        Args:
            request: What the server asks.
            cohort: The clients, with their data on the device.

        Raises:
            ObjectiveError: If the objective fails for a client.
        """
        self.clients.use(request.precision.on(cohort.device))
        if self._received is not None:
            table = self.clients.table
            self._received.fill(request, table.averaged_buffers, table.changed_buffers)
        with self._undisturbed(cohort.device):
            if request.stamp.phase == 0 or not self.oracle_selection.is_made:
                self._get_ready(request, cohort)
            with self._constant_buffers():
                yield from self.clients.answers(request, cohort, self.oracle_selection)

    def adapted(self, client_ids: Sequence[int], models: Models) -> Models:
        """Return clients' own models, which some methods make of the global one by local steps.

        Before the first round all clients use the model of the start.

        Args:
            client_ids: Clients of one architecture.
            models: Their shared parameters, personal blocks and buffers.

        Raises:
            UsageError: If the method adapts models, and their training data are not at hand.
        """
        points, personal, buffers = models
        with self.clients.active(client_ids[0]) as group:
            algorithm = group.table.algorithm
            if not isinstance(algorithm, AdaptsInUse) or buffers is None:
                return models
            with self._undisturbed(personal.device):
                own = adapted(group, algorithm, self._training_data(), client_ids, points, personal, buffers)
            return *own, buffers

    def mean_state(self) -> Any:
        """Return the mean of the algorithm's client states over all N clients of all processes; None if stateless."""
        mine = self.clients.table.mean_state()
        return mean_of_parts(self._processes.collect(mine), self.clients.table.start_state)

    def _get_ready(self, request: Request, cohort: Cohort) -> None:
        """Choose how operators are computed in the first round; later, make processes agree and run due checks."""
        if not len(cohort):
            self._choose_or_check(None, request, cohort)
            return
        selection, first = self.oracle_selection, cohort.members[0].id
        if selection.is_made and selection.is_due(request.stamp.round):
            first = cohort.apart(selection.turn(request), selection.chunk_size).ids[0]
        with self.clients.active(first) as group:
            self._choose_or_check(group, request, cohort)

    def _choose_or_check(self, group: ClientGroup | None, request: Request, cohort: Cohort) -> None:
        selection = self.oracle_selection
        if not selection.is_made:
            selection.choose(group, self._cost, cohort, request)
            return
        selection.agree()
        if selection.is_due(request.stamp.round):
            selection.check(group, cohort, request)

    @contextmanager
    def _undisturbed(self, device: torch.device) -> Iterator[None]:
        """Restore random generators, and free the task's attributes of graphs and batched tensors, afterwards."""
        generators = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
        with generators, python_generators_restored(), released(self._task):
            yield

    @contextmanager
    def _constant_buffers(self) -> Iterator[None]:
        """Check that no client writes into a buffer or a frozen parameter that all clients share.

        Raises:
            ObjectiveError: If the objective has begun to write into one that it did not write before.
        """
        held = {name: _trace(tensor) for name, tensor in self._constants()}
        yield
        for name, tensor in self._constants():
            if name in held and held[name] != _trace(tensor):
                kind = "frozen parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                raise begins_to_write(name_of_objective(self._task), kind, name)

    def _constants(self) -> Iterator[tuple[str, Tensor]]:
        """Yield frozen parameters, and the buffers that the objective is not known to write into."""
        known = self.clients.table.changed_buffers
        frozen = ((name, p) for name, p in named_parameters(self._task) if not p.requires_grad)
        for name, tensor in (*named_buffers(self._task), *frozen):
            if name not in known and not tensor.is_inference():
                yield name, tensor


def _trace(tensor: Tensor) -> tuple[Any, ...]:
    """Return what tells whether a constant was written into; ``.data`` is written without a new version."""
    if not isinstance(tensor, nn.Parameter) or not tensor.numel():
        return id(tensor), tensor._version
    some = tensor.detach().reshape(-1)[:: max(1, tensor.numel() // 64)]
    return id(tensor), tensor._version, tensor.data_ptr(), some.nan_to_num().tolist()
