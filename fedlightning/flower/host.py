"""What answers at a node: it builds the task of each run that begins, and keeps the run beside the states."""

from __future__ import annotations

import logging

import torch
from lightning.fabric import Fabric

from fedlightning.core.errors import UsageError
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.federation.protocol import Precision
from fedlightning.federation.remote.failure import answered
from fedlightning.federation.remote.node import NodeService
from fedlightning.federation.remote.packet import Packet
from fedlightning.federation.remote.roster_codec import ENROL, RUN
from fedlightning.federation.remote.run_config import RunConfig, name_of_run
from fedlightning.federation.remote.shard import Shard
from fedlightning.federation.remote.store import GenerationStore
from fedlightning.flower.allowed_classes import AllowedClasses
from fedlightning.flower.build_attempts import BuildAttempts
from fedlightning.flower.built import built_data
from fedlightning.flower.kept_run import keep_run, kept_run
from fedlightning.flower.node_config import NodeConfig
from fedlightning.flower.node_task import placed_task
from fedlightning.tasks.evaluation.node_evaluation import NodeEvaluator

_LOG = logging.getLogger(__name__)
_PRECISIONS = {None: None, "32-true": Precision(), "bf16-mixed": Precision(torch.bfloat16)}


class NodeHost:
    """Holds data, device and states of a node, and the task of the present run.

    The server describes its run when it asks who the node is. The node builds the task if it allows all of its classes,
    and keeps the description in a file: started again in the middle of a run, it goes on without being told.
    """

    def __init__(self, config: NodeConfig) -> None:
        """Open the states, and go on with the run that was kept there, if there is one.

        Args:
            config: The node's config.

        Raises:
            StoreError: If another process keeps states there.
            InvalidValueError: If the data cannot be built, or an entry of ``classes`` cannot be imported.
        """
        built_data(config)  # a mistake in the config shows now, not in the first round
        self._config = config
        self._allowed = AllowedClasses(config.classes)
        self._allowed.require_there()
        self._store = GenerationStore(config.states_folder)
        self._attempts = BuildAttempts(config.states_folder)
        self._run: str | None = None
        self._service: NodeService | None = None
        self._fabric = Fabric(accelerator=config.accelerator, devices=1)
        text = kept_run(config.states_folder)
        if text is not None:
            try:
                self._service, self._fabric = self._service_of(text)
                self._run = text
                _LOG.info("Went on with the run that was kept")
            except Exception as error:  # of any class of the run; the next enrolment may bring another run
                _LOG.warning("The run that was kept is given up, until a server enrols this node again: %r", error)

    def handle(self, data: bytes) -> bytes:
        """Answer one message; an error becomes a message, too."""
        return answered(data, self.answer)

    def answer(self, packet: Packet) -> Packet:
        """Answer one message.

        Raises:
            UsageError: If no run has begun.
            RefusedClassError: If a run begins that names classes which the node does not allow.
            DeadlyRunError: If a run begins that has ended this process each time its task was built.
        """
        text = packet.values.get(RUN) if packet.kind == ENROL else None
        if isinstance(text, str) and text != self._run:
            self._begin(text)
        if self._service is None:
            raise UsageError("This node knows of no run. A server says which one it is when it enrols the node.")
        with self._fabric.autocast():  # of parameters' dtype; mixed precision comes with each request
            return self._service.answer(packet)

    def close(self) -> None:
        """Let another process open the states."""
        self._store.close()

    def _begin(self, text: str) -> None:
        """Build the task of a run, keep the run, and answer for it from now on; on an error nothing changes."""
        service, fabric = self._service_of(text)
        keep_run(text, self._config.states_folder)
        self._service, self._fabric, self._run = service, fabric, text
        _LOG.info("A run begins: %s", type(service.simulation.task).__name__)

    def _service_of(self, text: str) -> tuple[NodeService, Fabric]:
        run, config = RunConfig.of_text(text), self._config
        with self._attempts.building(text):
            task, fabric = placed_task(run, self._allowed, config.accelerator)
            data = built_data(config, run.seed, run.work)
            evaluator = NodeEvaluator(task, data, config.places)
            shard = Shard(data, task.algorithm.phases, config.places, TaskArchitectures(task).of)
            _LOG.info("Clients %s on %s", ", ".join(map(str, shard.client_ids)), fabric.device)
            precision = _PRECISIONS[config.precision]
            name = name_of_run(text)
            return NodeService(task.run.simulation, shard, self._store, evaluator, precision, name), fabric
