"""The server and the clients of a task, from a fit that runs or ran, or from a checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from fedlightning.core.errors import NoSuchClientError
from fedlightning.core.parameter_space import ParameterSpace, write
from fedlightning.core.per_architecture import TaskArchitectures, keep_active_alone
from fedlightning.core.serialisation import CheckpointError
from fedlightning.data.module import FederatedDataModule
from fedlightning.federation.clients.adapting import TrainingData
from fedlightning.federation.clients.client import Models
from fedlightning.federation.loop import RoundLoop
from fedlightning.federation.protocol import EvaluationRequest
from fedlightning.federation.simulation import Connect, Simulation
from fedlightning.tasks.checkpoints.fingerprint import is_of

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule


class FederationRun:
    """Makes the simulation when it is needed, from what a checkpoint holds or from the task's present parameters.

    Attributes:
        source: File or other origin of the loaded states, for messages.
        trained_on: Identity of the federation the states belong to; empty if unknown.
        is_of_one_client: Whether the task is one client's personal model.
        rounds: Number of rounds after which the models are as they are, those before a checkpoint among them.
        drawn: Number of rounds, from the first, whose cohorts, minibatches and noise each seed of the data has drawn.
        connect: Makes the transport to clients on other machines, to be set before a fit; None if clients are here.
        training_data: On what clients adapt the global model where the algorithm has them do so; None if these data
            are not at hand.
    """

    def __init__(
        self,
        task: FederatedLightningModule,
        make: Callable[[FederatedLightningModule], Simulation],
        of_one_client: bool = False,
    ) -> None:
        """Store the task; the simulation is made later, when it is needed.

        Args:
            task: The task that is trained.
            make: Makes a simulation at a task's present parameters.
            of_one_client: Whether the task is one client's personal model.
        """
        self.source = "The checkpoint"
        self.trained_on: Mapping[str, Any] = {}
        self.is_of_one_client = of_one_client
        self.rounds = 0
        self.drawn: dict[int, int] = {}
        self.connect: Connect | None = None
        self.training_data: TrainingData | None = None
        self._task = task
        self._make = make
        self._simulation: Simulation | None = None
        self._loaded: Mapping[str, Any] | None = None
        self._shards: Sequence[Mapping[str, Any]] = ()
        self._model: Tensor | None = None
        self._released: Mapping[str, int] = {}
        self._goes_on = False
        self._weights_were_loaded = False

    @property
    def simulation(self) -> Simulation:
        """Return the server and the clients, made at the first call.

        Raises:
            CheckpointError: If loaded states do not fit the task.
        """
        if self._simulation is None:
            simulation = self._make(self._task)
            if self._loaded is not None:
                try:
                    simulation.load_state_dict(self._loaded, self._shards)
                except (ValueError, TypeError, LookupError, AttributeError, RuntimeError) as error:
                    of_error = type(error) if isinstance(error, CheckpointError) else CheckpointError
                    raise of_error(f"{self.source}: {error}") from error
                if self._goes_on:
                    _follow(self._task, simulation, self._model)
            elif simulation.server.reception is not None:
                simulation.server.reception.go_on_counting(self._released)
            self._simulation = simulation
        return self._simulation

    @property
    def exists(self) -> bool:
        """Return whether states of server and clients exist, made here or loaded."""
        return self._simulation is not None or self._loaded is not None

    @property
    def loop(self) -> RoundLoop:
        """Return the loop between server and clients, to ask clients for something.

        Before the first round it stands at the task's present parameters and is not kept: these may still change.
        """
        return self.present.loop

    @property
    def present(self) -> Simulation:
        """Return the server and the clients; before the first round those of the present parameters, not kept."""
        return self.simulation if self.exists else self._make(self._task)

    def evaluation_request(self, stage: str) -> EvaluationRequest:
        """Return the request that asks clients to measure the present models.

        Before the first round clients evaluate the task as it is, whose lazy layers may have no shape yet.

        Args:
            stage: ``val`` or ``test``: the data to evaluate on.
        """
        return self.simulation.server.evaluation_request(stage) if self.exists else EvaluationRequest(stage)

    @property
    def has_client_states(self) -> bool:
        """Return whether client states exist: from the first round on, or from a checkpoint that holds some."""
        if self._simulation is not None:
            return self._simulation.runner.clients.table.has_states
        return self._loaded is not None and self._loaded["clients"] is not None

    @property
    def restores_client_states(self) -> bool:
        """Return whether a loaded checkpoint keeps something that belongs to single clients."""
        if self._loaded is not None and self._task.algorithm.server_knows_clients:
            return True
        clients = None if self._loaded is None else self._loaded["clients"]
        tables = () if clients is None else clients.get("architectures", {"": clients}).values()
        return any(table["template"] for table in tables)

    @property
    def holds_weights_alone(self) -> bool:
        """Return whether weights of a global model were loaded, but no client states."""
        return self._weights_were_loaded and not self.has_client_states

    @property
    def at_round_boundary(self) -> bool:
        """Return whether model, server and client states belong to the same round, so that it is safe to checkpoint."""
        return self._simulation is None or self._simulation.loop.at_round_boundary

    @property
    def traffic_bytes(self) -> tuple[float, float]:
        """Return the bytes that all clients together have sent and received so far, as a channel makes them."""
        server = self.simulation.server
        return server.traffic.bytes(server.point.element_size(), server.reception is not None)

    @property
    def changed(self) -> str | None:
        """Return what was changed since the last round, or since states were loaded: ``parameter 'head.weight'``, say.

        That is a parameter, or a buffer that the objective changes, too; personal ones are those of a client's start.
        None if there is none. A server that has gone to NaN is where the task is.
        """
        return _changed_since(self._task, self.simulation, self._loaded is not None) if self.exists else None

    def load(
        self,
        state: Mapping[str, Any] | None,
        trained_on: Mapping[str, Any],
        shards: Sequence[Any] = (),
        rounds: int = 0,
        drawn: Mapping[int, int] | None = None,
        model: Tensor | None = None,
    ) -> None:
        """Keep loaded states, to be unpacked when the simulation is needed.

        Args:
            state: States of server and clients, as :meth:`Simulation.state_dict` returns them; None for none.
            trained_on: Identity of the federation they belong to; empty if unknown.
            shards: The clients of other processes.
            rounds: Number of rounds before they were saved.
            drawn: Rounds that were drawn by each seed; None if the file does not say, and then those of its data.
            model: Fingerprint of the task's parameters when they were saved; None if it is not known.
        """
        self.rounds = rounds
        if drawn is None:
            drawn = {trained_on["seed"]: rounds} if "seed" in trained_on else {}
        for seed, until in drawn.items():
            self.drawn[seed] = max(until, self.drawn.get(seed, 0))
        self._simulation, self._loaded, self._shards, self._model = None, state, shards, model
        self.trained_on, self._goes_on = trained_on, False

    def read_from(self, source: str) -> None:
        """Take note of the file that states are about to be loaded from, for messages."""
        self.source = source

    def note_loaded_weights(self) -> None:
        """Take note that the weights of a global model were loaded into the task."""
        self._weights_were_loaded = True

    def release_loaded(self) -> None:
        """Drop the loaded states, which the simulation is about to leave behind."""
        self._loaded, self._shards, self._model = None, (), None

    def begin_again(self, data: Any) -> None:
        """Start a fit from a loaded checkpoint, or else from the present parameters, as Lightning's optimizers do.

        Clients' own models are parameters, too. Where clients have such models, a fit goes on from all states of the
        fit before, unless the task's parameters have been changed since, or the data belong to other clients.

        Args:
            data: The data module of the fit.

        Raises:
            ValueError: If the checkpoint belongs to another federation than the data.
        """
        federated = isinstance(data, FederatedDataModule)
        if self._loaded is not None:
            self._task.client_models.require_data_of_same_clients(data, resuming=True)
        elif self._task.client_models.exist and self._simulation is not None and self.has_client_states:
            same = type(self._simulation.server.algorithm) is type(self._task.algorithm)
            if same and federated and data.differs_from(self.trained_on) is None and self.changed is None:
                self._loaded = self._simulation.state_dict()
            else:
                warnings.warn(
                    "The clients' own models of the fit before are given up: the task's parameters or its algorithm "
                    "were changed since, or the data are of other clients.",
                    stacklevel=2,
                )
        elif self._simulation is not None and self.rounds and _keeps_more_than_models(self._simulation):
            rank_zero_info(
                f"{type(self._task).__name__}: this fit goes on from the model alone, as a new optimizer does. What "
                f"server and clients of {type(self._simulation.server.algorithm).__name__} have kept beside it goes on "
                "with ckpt_path, from a checkpoint."
            )
        if self._simulation is not None and self._simulation.server.reception is not None:
            self._released = self._simulation.server.reception.kept.releases
        self._simulation, self._goes_on = None, self._loaded is not None
        self.trained_on = data.identity if federated else {}
        self._task.client_models.adapt_on(data)
        self.is_of_one_client = self._weights_were_loaded = False

    # ---- clients' models ---------------------------------------------------------------------------------------------

    def put_in(self, client: int | None, own: bool = True, request: EvaluationRequest | None = None) -> None:
        """Put a client's model, or the global one, into the task's parameters and buffers.

        Args:
            client: Id of the client, whose architecture becomes the active one; None for the global model.
            own: Whether to take the client's personal model; else the global one, beside the client's personal block
                and local buffers.
            request: Evaluation whose global model a client's model is made from; None for the server's present one.

        Raises:
            IndexError: If there is no such client.
        """
        _put_into(self._task, self.simulation if self.exists else None, client, own, request)

    def personalized(self, client: int, request: EvaluationRequest | None = None) -> FederatedLightningModule:
        """Return a copy of the task with one client's own model, and without the states of server and clients.

        Args:
            client: Id of the client.
            request: Has the global model that the client's is made from; None for the server's present one.
        """
        copied: Any = deepcopy(self._task, {id(self): None})
        copied.run = FederationRun(copied, self._make, of_one_client=True)
        copied.run.rounds = self.rounds
        copied.predict_client = None
        _put_into(copied, self.simulation, client, request=request)
        keep_active_alone(copied)
        return copied  # type: ignore[no-any-return]

    def client_states(self) -> Any:
        """Return the algorithm's states of all N clients, ``[N, ...]``; None for a stateless algorithm.

        Raises:
            RuntimeError: If the client states lie in several processes, or before the first round.
        """
        return self.simulation.client_states()


def _keeps_more_than_models(simulation: Simulation) -> bool:
    """Return whether clients keep anything, or the server something beside the model."""
    return simulation.runner.clients.table.start_state is not None or len(fields(simulation.server.state)) > 1


def _changed_since(task: FederatedLightningModule, simulation: Simulation, from_file: bool) -> str | None:
    """Return what of a task is no more where server and clients stand; see :attr:`FederationRun.changed`."""
    architecture = TaskArchitectures(task).active
    point, personal, buffers = simulation.global_model(architecture)
    space = simulation.space_of(architecture)
    kept = {**space.shared.views(point[0]), **space.personal.views(personal[0])}
    parameter = _changed(kept, dict(task.named_parameters()), from_file)
    if parameter is not None:
        return f"parameter '{parameter}'"
    buffer = _changed({} if buffers is None else space.buffers.views(buffers[0]), dict(task.named_buffers()), from_file)
    return None if buffer is None else f"buffer '{buffer}'"


def _follow(task: FederatedLightningModule, simulation: Simulation, model: Tensor | None) -> None:
    """Move a task whose model is that of a checkpoint to the point that the server makes of the loaded states.

    It is another one if the hyper-parameters are others: a penalty or a regularizer, say, by which the point comes from
    what the server keeps.
    """
    if _changed_since(task, simulation, from_file=True) is not None and is_of(task, model):
        architecture = TaskArchitectures(task).active
        _write(task, simulation, architecture, simulation.global_model(architecture))
        rank_zero_info(
            f"{type(task).__name__}: hyper-parameters differ from the checkpoint's by which the global model follows "
            "from what the server keeps. The fit goes on from the model that follows now."
        )


_OF_FILES = (torch.bfloat16, torch.float16)
"""Dtypes in which a checkpoint may have rounded what it keeps of the task, and not what it keeps of the server."""


def _changed(kept: Mapping[str, Tensor], present: Mapping[str, Tensor], from_file: bool) -> str | None:
    """Return the name of a tensor that is no more as it was written, here or to a file; None if there is none."""
    for name, value in kept.items():
        if name not in present:  # as pruning leaves a weight, say
            return name
        own = present[name].detach()
        written = (value if own.is_floating_point() else value.round()).to(own)
        if torch.equal(own, written) or torch.allclose(own, written, rtol=1e-5, equal_nan=True):
            continue
        if not from_file or not any(torch.equal(own, written.to(dtype).to(own)) for dtype in _OF_FILES):
            return name
    return None


def require_client(simulation: Simulation, client: int) -> None:
    """Refuse a number that is no client's.

    Raises:
        IndexError: If there is no such client.
    """
    known = simulation.num_clients
    if known is not None and not 0 <= client < known:
        raise NoSuchClientError(f"client={client}: the federation has clients 0 to {known - 1}.")


def _put_into(
    task: FederatedLightningModule,
    simulation: Simulation | None,
    client: int | None,
    own: bool = True,
    request: EvaluationRequest | None = None,
) -> None:
    """Put a client's model, or the global one (``client`` None), into a task; without rounds its architecture only."""
    if client is not None and simulation is not None and (request is None or task.run.is_of_one_client):
        require_client(simulation, client)  # else it is one that is evaluated
    choice = TaskArchitectures(task)
    wanted = choice.first if client is None else choice.of(client)
    if simulation is not None and wanted != choice.active:  # the architecture that is left gets its start back
        _write(task, simulation, choice.active, simulation.global_model(choice.active))
    choice.activate(wanted)
    if simulation is not None:
        models = simulation.global_model(wanted) if client is None else simulation.models([client], own, request)
        _write(task, simulation, wanted, models)


def _write(task: FederatedLightningModule, simulation: Simulation, architecture: str, models: Models) -> None:
    """Write the first of the models, which has the active architecture, into a task."""
    points, personal, buffers = models
    space: ParameterSpace = simulation.space_of(architecture)
    write(space.shared, task, points[0])
    write(space.personal, task, personal[0])
    if buffers is not None:
        write(space.buffers, task, buffers[0])
