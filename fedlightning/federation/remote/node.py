"""The service of a node: it holds clients with their data and states, and answers requests as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import torch

import fedlightning
from fedlightning.core.modules import first_trained
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.federation.channels.reception import description_of
from fedlightning.federation.client_states import StatesByField
from fedlightning.federation.protocol import Moment, Precision, Request, Roster, Stamp
from fedlightning.federation.remote.client_rows import ClientRows
from fedlightning.federation.remote.data_digest import DataDigest
from fedlightning.federation.remote.evaluation_codec import EVALUATE, decode_evaluate, encode_evaluation
from fedlightning.federation.remote.failure import answered
from fedlightning.federation.remote.generation import Generation, RequestDigest, Standing
from fedlightning.federation.remote.message_types import MessageTypes, type_name
from fedlightning.federation.remote.packet import Packet, PacketError
from fedlightning.federation.remote.roster_codec import (
    ENROL,
    JOIN,
    Enrolment,
    decode_join,
    encode_enrolment,
    encode_roster,
)
from fedlightning.federation.remote.sent_model import SentModel, SentModels
from fedlightning.federation.remote.shard import Shard
from fedlightning.federation.remote.standing import Asked
from fedlightning.federation.remote.store import GenerationStore, Kept, StoreError
from fedlightning.federation.remote.terms_codec import require_terms
from fedlightning.federation.remote.training_codec import (
    ASK,
    decode_asked,
    encode_answer,
    encode_answers,
    split,
)
from fedlightning.federation.simulation import Simulation
from fedlightning.federation.transport import Evaluator
from fedlightning.federation.validation import require_same_buffers


@runtime_checkable
class KeepsTime(Protocol):
    """A task whose objective may ask for epoch and round, as a LightningModule's does."""

    moment: Moment


@runtime_checkable
class TellsHowItLogs(Protocol):
    """A task that knows how the values which its objective has logged are to be reported."""

    @property
    def log_options(self) -> Mapping[str, Mapping[str, bool]]:
        """Return the options by the name of the value."""


class NodeService:
    """Answers the server for the clients of one node.

    It runs the task, the algorithm and the data it was made with. A request chooses none of them: it says which clients
    answer from which of their states, and brings numbers. States, personal blocks and local buffers stay in the store.

    Attributes:
        simulation: Task and algorithm of the node.
        runner: Computes the clients.
    """

    def __init__(
        self,
        simulation: Simulation,
        shard: Shard,
        store: GenerationStore,
        evaluator: Evaluator | None = None,
        precision: Precision | None = None,
        run: str = "",
    ) -> None:
        """Take what a node works with.

        Args:
            simulation: Task and algorithm; its server has no part in the federation.
            shard: The training data of the node's clients.
            store: Keeps the states of the clients.
            evaluator: Measures models of the clients; None where they are never evaluated.
            precision: Precision of the objective at this node; None for what each request asks for.
            run: Name of the run that the task was built for, the only one it answers; empty if it was given otherwise.
        """
        task = simulation.task
        first = first_trained(task)
        self.simulation = simulation
        self.runner = simulation.runner
        self._algorithm = simulation.server.algorithm
        self._reception = simulation.server.reception
        self._types = MessageTypes(self._algorithm)
        self._rows = ClientRows(self.runner, TaskArchitectures(task))
        self._shard = shard
        self._store = store
        self._models = SentModels(store.folder)
        self._evaluator = evaluator
        self._precision = precision
        self._run = run
        self._place = first.device, first.dtype
        self._answers: dict[str, Callable[[Packet], Packet]] = {
            ENROL: self._enrol,
            JOIN: self._join,
            ASK: self._ask,
            EVALUATE: self._evaluate,
        }

    def handle(self, data: bytes) -> bytes:
        """Answer one message; an error becomes a message, too, and changes no state.

        Args:
            data: A packet as bytes.

        Returns:
            The answer as bytes.
        """
        return answered(data, self.answer)

    def answer(self, packet: Packet) -> Packet:
        """Answer one message.

        Raises:
            PacketError: If it is no message for a node.
        """
        if packet.kind not in self._answers:
            raise PacketError(f"A node has no answer to a message of the kind {packet.kind!r}.")
        return self._answers[packet.kind](packet)

    def states(self, federation: str, standing: Standing) -> StatesByField | None:
        """Return what the node keeps of a client, to be used at the node; None for a client before its first round.

        Raises:
            StoreError: If the node does not have it any more.
        """
        return self._store.states(federation, standing)

    def close(self) -> None:
        """Let another process go on with the states of the clients."""
        self._store.close()

    def _enrol(self, packet: Packet) -> Packet:
        shard, algorithm = self._shard, type_name(type(self._algorithm))
        parameters, version = self.simulation.parameters, fedlightning.__version__
        try:
            data = shard.digests(DataDigest(self._store.folder))
        except OSError as error:
            raise StoreError(f"The node's key of digests cannot be used: {error}.") from error
        channel = description_of(self._reception)
        return encode_enrolment(
            Enrolment(shard.client_ids, shard.samples, data, parameters, algorithm, version, self._precision, channel)
        )

    def _join(self, packet: Packet) -> Packet:
        return encode_roster(self._try_out(self._shard.client_ids[0], decode_join(packet)))

    def _ask(self, packet: Packet) -> Packet:
        asked = decode_asked(packet, self._types)
        self._require_fit(asked)
        require_terms(asked.request, self._reception)
        self._begin(asked.request.moment)
        digest = RequestDigest(asked.request, asked.run)
        found = {}
        for standing in asked.standings:
            generation = digest.generation(standing)
            found[standing] = generation, self._store.find(asked.federation, standing.client, generation)
        new = {standing: generation for standing, (generation, kept) in found.items() if kept is None}
        answers = self._computed(asked, new) if new else {}
        self._keep_model(asked)
        for standing in asked.standings:
            self._store.prune(asked.federation, standing, asked.request.stamp.round)
        return encode_answers(
            [answers[standing.client] if kept is None else kept.answer for standing, (_, kept) in found.items()]
        )

    def _computed(self, asked: Asked[Request], generations: dict[Standing, Generation]) -> dict[int, Packet]:
        """Compute answers of clients, and keep the states that they lead to before anything is sent."""
        clients = [standing.client for standing in generations]
        request = asked.request.placed(self._place[0])
        request = replace(request, precision=self._precision or request.precision)
        states = {each.client: self._store.states(asked.federation, each) for each in generations}
        if not self.runner.has_joined:
            require_same_buffers(request, self._try_out(clients[0], request.precision))
        self._get_ready(_with_states(states), request.precision)
        cohort = self._shard.cohort(clients, request, *self._place)
        answers: dict[int, Packet] = {}
        with torch.no_grad(), self._rows.at(states):
            for answer in self.runner.train(request, cohort):
                answers |= {each.client_ids[0]: encode_answer(each) for each in split(answer)}
            self.runner.clients.settle({client: Stamp(*request.stamp) for client in clients})
            after = {client: self._rows.of(client) for client in clients}
        for standing, generation in generations.items():
            kept = Kept(after[standing.client], answers[standing.client])
            self._store.keep(asked.federation, standing.client, generation, kept)
        return answers

    def _get_ready(self, client_ids: Sequence[int], precision: Precision) -> None:
        """Find out which buffers change for clients, where this process has not seen that yet."""
        for client in client_ids:
            if not self._rows.has_table(client):
                self._try_out(client, precision)

    def _try_out(self, client: int, precision: Precision) -> Roster:
        cohort, task = self._shard.trial(client, *self._place), self.simulation.task
        roster = self.runner.join(cohort, self._shard.samples, self._precision or precision)
        return replace(roster, log_options=task.log_options) if isinstance(task, TellsHowItLogs) else roster

    def _evaluate(self, packet: Packet) -> Packet:
        if self._evaluator is None:
            raise PacketError("This node was made without evaluation data, so its clients have nothing to measure.")
        asked = decode_evaluate(packet)
        clients = [standing.client for standing in asked.standings]
        self._require_fit(asked)
        self._begin(asked.request.moment)
        states = {each.client: self._store.states(asked.federation, each) for each in asked.standings}
        request = asked.request.to(self._place[0])
        request = replace(request, precision=self._precision or request.precision)
        sent = request.buffers  # whose values they are only a trial says, also for who never took part
        self._get_ready(clients if sent is not None and len(sent) else _with_states(states), request.precision)
        with self._rows.at(states):
            found = list(self._evaluator.answers(request, clients))
        self._keep_model(asked)
        return encode_evaluation(found)

    def _keep_model(self, asked: Asked[Any]) -> None:
        """Keep what was sent, so that the node can put its clients' models together without the server."""
        bases = {standing.client: standing.base for standing in asked.standings}
        changed = {client: self._rows.changed_buffers(client) for client in bases}
        request = asked.request
        if request.point is not None:
            self._models.keep(
                SentModel(
                    asked.federation, request.moment.step, request.point, request.buffers, bases, changed, asked.run
                )
            )

    def _begin(self, moment: Moment) -> None:
        """Tell the task what time it is at the server."""
        if isinstance(self.simulation.task, KeepsTime):
            self.simulation.task.moment = moment

    def _require_fit(self, asked: Asked[Any]) -> None:
        """Make sure that a request is of this node's run, and of its own clients."""
        if asked.run != self._run:
            raise PacketError(
                "The request is of another run than the one that this node was enrolled for last, so other "
                "hyper-parameters would answer it. Have one server at a time run, and start the others again."
            )
        own = self._shard.client_ids
        if others := [each.client for each in asked.standings if each.client not in own]:
            raise PacketError(f"Client {others[0]} is not at this node, which holds {', '.join(map(str, own))}.")


def _with_states(states: Mapping[int, StatesByField | None]) -> list[int]:
    """Return the clients that have a state to go on from."""
    return [client for client, own in states.items() if own is not None]
