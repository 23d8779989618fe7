"""A federation in one process, or shared by several processes: server, clients and the loop between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from fedlightning.algorithms.base import Algorithm
from fedlightning.channel.channel import Channels
from fedlightning.core.errors import InvalidValueError, UsageError
from fedlightning.core.parameter_space import ParameterSpace, read, write
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.core.serialisation import UntrustedClassError, class_path, from_config, to_config
from fedlightning.federation.buffers import Buffers, are_whole
from fedlightning.federation.client_states import Storage
from fedlightning.federation.clients.adapting import TrainingData
from fedlightning.federation.clients.architectures import Architectures
from fedlightning.federation.clients.client import ClientRunner, Clients, Models
from fedlightning.federation.clients.client_group import ClientGroup
from fedlightning.federation.clients.client_table import ClientTable
from fedlightning.federation.clients.oracle_selection import OracleSelection, When
from fedlightning.federation.clients.received import ReceivedCopies
from fedlightning.federation.loop import RoundLoop, RoundResult
from fedlightning.federation.processes import OneProcess, Processes, held_by
from fedlightning.federation.protocol import EvaluationRequest, Invitation, Moment, Precision, Transport, described
from fedlightning.federation.resume import Dependencies, require_same_shared
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.federation.server import FederatedServer, Weighting
from fedlightning.federation.traffic import Traffic
from fedlightning.federation.transport import Evaluator, InProcess
from fedlightning.oracle import Autocast, ClientBatching
from fedlightning.proximal import Composite


class Connection(Transport, Protocol):
    """A transport that takes the rounds of a train loader, and knows what checkpoints keep of its clients."""

    def receive(self, batch: RoundBatch) -> Sequence[Invitation]:
        """Take the coming round, and return who is to be asked in each phase."""

    def release(self) -> None:
        """Let go of the data of the round, which is over."""

    def checkpoint(self) -> dict[str, Any] | None:
        """Return what a checkpoint keeps of clients whose states are elsewhere; None if they are here."""

    def resume(self, stored: Any) -> None:
        """Go on from a :meth:`checkpoint`."""


Connect = Callable[["Simulation"], Connection]
"""Makes the transport by which the server of a simulation reaches clients on other machines."""


class Simulation:
    """Runs a server and the clients of one process, connected by an :class:`InProcess` transport.

    With a transport to clients on other machines, only the server has a part in the rounds.

    Attributes:
        task, space: The module with the objective, and its parameters by block.
        parameters: Names, shapes and dtypes of the shared parameters.
        server: The server half.
        runner: The client half.
        loop: Carries out rounds between them.
        processes: All processes that share the clients.
        clients_are_elsewhere: Whether the clients live on other machines, with their data and states.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        task: nn.Module,
        space: ParameterSpace,
        oracle: ClientBatching,
        weighting: Weighting = "uniform",
        buffers: Buffers = "average",
        storage: Storage | None = None,
        processes: Processes | None = None,
        regularizer: Composite | None = None,
        report: Callable[[str], None] = lambda _: None,
        drift_parameters: Sequence[str] = (),
        self_check: When = "first",
        evaluator: Evaluator | None = None,
        connect: Connect | None = None,
        channels: Channels | None = None,
        training_data: Callable[[], TrainingData | None] = lambda: None,
    ) -> None:
        """Start at the task's present parameters.

        Args:
            algorithm: What clients and server do.
            task: A module with ``objective(batch)``.
            space: The task's parameters by block.
            oracle: How operators are computed.
            weighting: How clients are weighted in means: all the same, or by their numbers of samples.
            buffers: Whether the server averages the buffers that the objective changes (BatchNorm's statistics), except
                those of personal layers, or each client keeps its own: ``average``, or ``local`` (FedBN).
            storage: Where client states lie; by default beside the model.
            processes: All processes that share the clients; None for this process alone.
            regularizer: Regularizers of the shared parameters.
            report: Receives messages for the user.
            drift_parameters: Name prefixes of the shared parameters whose drift is logged; empty for all.
            self_check: When the oracle is compared with evaluation client by client.
            evaluator: Measures clients' models; None where clients never evaluate.
            connect: Makes the transport to clients on other machines; None if clients are here.
            channels: What happens to updates on their way; None for nothing.
            training_data: Returns on what clients adapt the global model where the algorithm has them do so.
        """
        self.space = space
        self.task = task
        self.parameters = described(space.shared, task)
        self._regularizer, self._report, self._weighting = regularizer, report, weighting
        self.processes: Processes = OneProcess() if processes is None else processes
        start = read(space.shared, task)
        self._start = start.to(torch.promote_types(start.dtype, torch.float32))  # duals of a 16-bit model stay exact
        drifting = space.shared.columns(drift_parameters, "drift_parameters") if drift_parameters else None
        places = None if drifting is None else drifting.to(start.device)

        def make_group() -> ClientGroup:
            own = space.of_active(task)
            table = ClientTable(self._bind(algorithm, own), task, own, self._start, buffers, storage)
            return ClientGroup(table, places, channels)

        choice = TaskArchitectures(task)
        with choice.activated(choice.first):
            clients: Clients = Architectures(task, make_group) if choice else make_group()
            self.server = FederatedServer(
                self._bind(algorithm, space), self._start, weighting, channels, partial(are_whole, clients.table, task)
            )
        selection, received = OracleSelection(oracle, self.processes, report, self_check), ReceivedCopies(task, space)
        self.runner = ClientRunner(task, clients, selection, self.processes, self.parameters, training_data, received)
        self._transport: Connection = InProcess(self.runner, self.processes, evaluator)
        self.clients_are_elsewhere = connect is not None
        if connect is not None:
            if self.processes.count > 1:
                raise UsageError("A server of clients on other machines is one process. Train it with devices=1.")
            self._transport = connect(self)
        self.loop = RoundLoop(self.server, self._transport)

    def run(
        self, batch: RoundBatch, autocast: Autocast, undo_overflow: bool = False, moment: Moment | None = None
    ) -> RoundResult:
        """Run one communication round.

        Args:
            batch: The round's cohorts, on the device.
            autocast: Mixed precision of the objective.
            undo_overflow: Leave every state as it was if any client returns a non-finite number (loss scaling).
            moment: When the round takes place, for clients on other machines; None where nobody asks.

        Raises:
            RoundRejectedError: If no client of a cohort returned finite numbers.
            ValueError: If the data have another number of clients than the loaded states.
        """
        _require_as_many(self.num_clients, len(batch.samples))
        invitations, precision = self._transport.receive(batch), Precision(autocast.dtype, autocast.scale)
        try:
            return self.loop.run(batch.index, invitations, undo_overflow, precision, moment)
        finally:
            self._transport.release()

    @property
    def num_clients(self) -> int | None:
        """The number of clients, N; None before the first round."""
        return self.runner.clients.table.num_clients

    def models(self, client_ids: Sequence[int], own: bool = True, request: EvaluationRequest | None = None) -> Models:
        """Return models of clients of one architecture; see :meth:`ClientTable.models`.

        Args:
            client_ids: Clients of one architecture.
            own: Whether these are the clients' personal models; else the global one, beside their personal blocks.
            request: Has the global model to combine with what clients keep; None for the server's present one.

        Raises:
            UsageError: If the state of a client lies in another process, or own models need data that are not at hand.
        """
        self._require_here(client_ids)
        asked: Any = self.server if request is None or request.point is None else request
        models = self.runner.clients.table.models(client_ids, asked.point, asked.buffers, own)
        return self.runner.adapted(client_ids, models) if own else models

    def _require_here(self, client_ids: Sequence[int]) -> None:
        if self.num_clients is None or not self._keeps_states:
            return
        if self.clients_are_elsewhere:
            raise UsageError(
                f"The state of client {client_ids[0]} lies at its node and never leaves it. Put the client's model "
                "together there."
            )
        _require_in_this_process(client_ids, self.processes, self.num_clients)

    @property
    def _keeps_states(self) -> bool:
        """Whether clients keep a state, parameters or buffers of their own; otherwise all have the global model."""
        clients = self.runner.clients.table
        own_buffers = clients.changed_buffers - set(clients.averaged_buffers)
        return clients.start_state is not None or bool(self.space.personal.dim) or bool(own_buffers)

    def global_model(self, architecture: str = "") -> Models:
        """Return the global model with the personal block that clients of an architecture start with."""
        group = self.runner.clients.of_architecture(architecture)
        return group.table.global_model(self.server.point, self.server.buffers)

    def space_of(self, architecture: str = "") -> ParameterSpace:
        """Return the parameters of an architecture by block."""
        return self.runner.clients.of_architecture(architecture).table.space

    def client_states(self) -> Any:
        """Return the algorithm's states of all N clients, a dataclass of ``[N, ...]``; None if stateless.

        Raises:
            RuntimeError: If the states lie in several processes, or before the first round.
        """
        if self.clients_are_elsewhere:
            raise UsageError("The states of the clients lie at their nodes and never leave them.")
        if self.processes.count > 1:
            raise UsageError(
                f"The states of the clients lie in {self.processes.count} processes. Save a checkpoint, and load it "
                "with load_from_checkpoint in one process."
            )
        return self.runner.clients.table.all_states()

    def write_buffers(self, task: nn.Module) -> None:
        """Write the global model's buffers into the architecture that is active in the task.

        Averaged buffers have the server's values, local buffers their initial values.
        """
        architecture = TaskArchitectures(task).active
        _, _, buffers = self.global_model(architecture)
        if buffers is not None:
            write(self.space_of(architecture).buffers, task, buffers[0])

    # ---- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return all that a later run needs to continue bit for bit, with the clients of this process only."""
        clients, buffers = self.runner.clients.table, self.server.buffers
        values = self._start.new_empty(0) if buffers is None else buffers
        nodes = self._transport.checkpoint()
        return {
            **self.server.state_dict(),
            **({} if nodes is None else {"nodes": nodes}),
            "clients": clients.state_dict() if clients.has_states else None,
            "buffers": {"names": list(clients.averaged_buffers), "values": values},
            "oracle": to_config(self.runner.oracle_selection.oracle, "oracle"),
            "depends_on": self._dependencies.values,
            "shared_parameters": list(self.space.shared.names),
        }

    def load_state_dict(self, state: Mapping[str, Any], others: Iterable[Mapping[str, Any]] = ()) -> None:
        """Continue from the :meth:`state_dict` of a simulation of the same algorithm and task.

        Args:
            state: What was saved, with the clients of one process.
            others: The ``clients`` of the other processes of that run, whose number may have been another.

        Raises:
            ValueError: If a state's fields or shapes differ from this task's, or the state was computed with other
                hyper-parameters and cannot be made to fit.
            UntrustedClassError: If the checkpoint names an oracle that it may not choose.
        """
        require_same_shared(state.get("shared_parameters"), self.space.shared.names)
        self.server.resume_channel(state.get("channel"))
        computed_with = state.get("depends_on", {})
        before = self._dependencies.algorithm_of(
            computed_with, lambda given: self._bind(given, self.space), self._start
        )
        same = before is self.server.algorithm
        start = self.server.state if same else before.init_server(self._start.clone())
        stored = self.server.stored_state(state, start)
        binding = self.server.algorithm.binding
        if not same and binding is not None and self._dependencies.vary(computed_with):
            self.server.algorithm, same = binding.of(before), True  # the next round goes on from its values
        traffic = Traffic.restored(state)
        if state["clients"] is None:  # no round yet, so nothing depends on hyper-parameters
            self.server.resume(stored if same else self.server.state, traffic, self.server.buffers)
            return
        mine = held_by(self.processes.rank, self.processes.count, state["clients"]["clients"])
        for part in (state["clients"], *others):
            self.runner.clients.table.load_state_dict(part, mine)
        self._transport.resume(state.get("nodes"))
        server = stored if same else self._carried_over(stored, before, computed_with)
        self.server.resume(server, traffic, state["buffers"]["values"].to(self._start.device))
        self.runner.oracle_selection.resume(_stored_oracle(state["oracle"], self.runner.oracle_selection.oracle))

    def _carried_over(self, server: Any, before: Algorithm, stored: Mapping[str, Any]) -> Any:
        """Convert the server state of a run with other hyper-parameters to the hyper-parameters of this run."""
        known = self._weighting == "uniform" and not self.clients_are_elsewhere and not self.server.hides_clients
        carried = self.server.algorithm.carried_over(server, before, self.runner.mean_state() if known else None)
        if carried is None:
            raise self._dependencies.refusal(stored)
        then, now = self._dependencies.compared(stored)
        self._report(f"resumed with {now} in place of {then}: the server state was made to fit.")
        return carried

    @property
    def _dependencies(self) -> Dependencies:
        return Dependencies(self.server.algorithm.given, self.server.algorithm, self._weighting)

    def _bind(self, algorithm: Algorithm, space: ParameterSpace) -> Algorithm:
        return algorithm.bind(space, self._start, self._regularizer)


def _require_as_many(known: int | None, found: int) -> None:
    """Make sure that data have the clients of the loaded states; before the first round nothing is known."""
    if known is not None and known != found:
        raise InvalidValueError(
            f"The checkpoint holds a federation of {known} clients, the data have {found}. Resume with the data it was "
            "trained on."
        )


def _require_in_this_process(client_ids: Sequence[int], processes: Processes, num_clients: int) -> None:
    """Make sure that the states of clients lie in this process.

    Raises:
        UsageError: If one does not.
    """
    count = processes.count
    if count == 1:
        return
    mine = held_by(processes.rank, count, num_clients)
    if elsewhere := [client for client in client_ids if client not in mine]:
        raise UsageError(
            f"The state of client {elsewhere[0]} lies in process {elsewhere[0] % count} of {count}, this is process "
            f"{processes.rank}. Save a checkpoint, and load it with load_from_checkpoint in one process."
        )


def _stored_oracle(config: Mapping[str, Any], present: ClientBatching) -> ClientBatching:
    """Return a checkpoint's oracle if it is this package's; a user's own oracle stays as given to this run."""
    path = config.get("class_path")
    package = __package__.partition(".")[0]
    if path == class_path(type(present)) and not path.startswith(f"{package}."):
        return present
    if not str(path).startswith(f"{package}.oracle."):
        raise UntrustedClassError(
            f"federation.oracle names the class {path!r}, which a checkpoint may not choose; nothing of it was "
            "imported or run. If it is the oracle of your own that the run was made with, give it again: oracle=..."
        )
    stored = from_config(config, place="federation.oracle")
    if not isinstance(stored, ClientBatching):
        raise UntrustedClassError(f"federation.oracle is a {type(stored).__name__}, expected an oracle.")
    return stored
