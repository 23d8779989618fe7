"""A transport to clients at nodes on other machines, over any network that carries packets."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.core.validation import require
from fedlightning.federation.buffers import are_whole
from fedlightning.federation.channels.reception import description_of
from fedlightning.federation.processes import OneProcess, Processes
from fedlightning.federation.protocol import (
    Answer,
    EvaluationAnswer,
    EvaluationRequest,
    Invitation,
    Precision,
    Request,
    Roster,
    Stamp,
)
from fedlightning.federation.remote.carrier import Carrier
from fedlightning.federation.remote.checks import AnswerChecks
from fedlightning.federation.remote.enrolment import Directory, EnrolmentError, merged
from fedlightning.federation.remote.exchange import Exchange
from fedlightning.federation.remote.expectations import Expectation, Expectations
from fedlightning.federation.remote.generation import Generation, RequestDigest
from fedlightning.federation.remote.ledger import Ledger
from fedlightning.federation.remote.logged_names import LoggedNames
from fedlightning.federation.remote.message_types import MessageTypes
from fedlightning.federation.remote.packet import Packet, PacketError
from fedlightning.federation.remote.roster_codec import decode_roster, encode_join
from fedlightning.federation.remote.run_config import name_of_run
from fedlightning.federation.remote.silence import Silence
from fedlightning.federation.remote.standing import Asked
from fedlightning.federation.remote.training_codec import decode_answer, decode_answers, encode_asked
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.federation.simulation import Simulation
from fedlightning.federation.transport.remote_evaluation import RemoteEvaluation


@dataclass(frozen=True)
class Deadlines:
    """Says how long the server waits for nodes, in seconds.

    Attributes:
        enrol: For all clients to be there, and for the first evaluation of their objectives.
        phase: For the answers of one phase of a round; a node that is late is not waited for.
        evaluate: For the metrics of an evaluation.
    """

    enrol: float = 600.0
    phase: float = 600.0
    evaluate: float = 600.0

    def __post_init__(self) -> None:
        require(self, "enrol", "phase", "evaluate", above=0.0)


class Remote:
    """Reaches clients that live at nodes, whose data and states never come here.

    Attributes:
        processes: The server is one process.
        directory: Which node holds which clients.
        ledger: Which answers of clients were accepted last, which is all that a server keeps of single clients.
    """

    processes: Processes

    def __init__(
        self,
        carrier: Carrier,
        simulation: Simulation,
        num_clients: int,
        deadlines: Deadlines | None = None,
        checks: AnswerChecks | None = None,
        silence: Silence | None = None,
        run: str = "",
    ) -> None:
        """Reach the nodes of a federation.

        Args:
            carrier: Carries packets.
            simulation: Task, algorithm and server; its clients have no part in the federation.
            num_clients: Number N of clients of the federation, at all nodes together.
            deadlines: How long the server waits for nodes.
            checks: What answers are refused for beside wrong shapes.
            silence: What is done about nodes that do not answer.
            run: Description of the run, from which nodes build their task; empty if they have one already.
        """
        server = simulation.server
        self.processes = OneProcess()
        self.ledger = Ledger()
        self._run = name_of_run(run)
        self._deadlines = Deadlines() if deadlines is None else deadlines
        self.directory = Directory(
            carrier,
            num_clients,
            server.algorithm,
            simulation.parameters,
            self._deadlines.enrol,
            run=run,
            channel=description_of(server.reception),
        )
        silence = Silence() if silence is None else silence
        self._exchange = Exchange(carrier, self.directory, silence)
        self._checks = AnswerChecks() if checks is None else checks
        self._evaluation = RemoteEvaluation(
            carrier, self.directory, self.ledger, self._deadlines.evaluate, silence.tolerance, self._run, self._checks
        )
        self._types = MessageTypes(server.algorithm)
        channels = None if server.reception is None else server.reception.channels
        self._expectations = Expectations(
            lambda: server.algorithm,
            simulation.space.personal.dim,
            channels,
            partial(are_whole, simulation.runner.clients.table, simulation.task),
        )
        self._device = server.point.device
        self._simulation = simulation
        self._asked: dict[int, tuple[Stamp, Generation]] = {}
        self._logged = LoggedNames()

    def join(self, precision: Precision) -> Roster:
        """Wait for all clients, and return their roster; clients that a checkpoint knows may be away.

        Raises:
            EnrolmentError: If nodes do not fit each other, or do not answer.
        """
        self.directory.complete()
        packets = dict.fromkeys(self.directory.nodes, encode_join(precision))
        rosters: dict[str, Roster] = {}
        for node, packet in self._exchange.answers(packets, "join", "Before the first round", self._deadlines.enrol):
            name = self.directory.name(node)
            try:
                rosters[name] = decode_roster(packet)
            except PacketError as error:
                raise EnrolmentError(f"{name} cannot join: {error}") from error
        roster = merged(rosters, self.directory)
        self._begin_tables(roster)
        return roster

    def ask(self, request: Request, invited: Sequence[int]) -> Iterator[Answer]:
        """Yield the answers of the invited clients as they come until the deadline; wrong ones are left out."""
        self.directory.look_for_nodes()
        self.ledger.begin_round(request.stamp.round)
        self._logged.begin(request.stamp.phase)
        expected, digest = self._expectations.of(request), RequestDigest(request, self._run)
        standings = {client: self.ledger.standing(client) for client in invited}
        self._asked = {client: (request.stamp, digest.generation(each)) for client, each in standings.items()}
        asked = self.directory.by_node(invited)
        packets = {
            node: encode_asked(
                Asked(self.ledger.federation, request, tuple(standings[each] for each in own), self._run)
            )
            for node, own in asked.items()
        }
        where, group = _where(request.stamp), f"{request.stamp.round}.{request.stamp.phase}"
        for node, packet in self._exchange.answers(packets, group, where, self._deadlines.phase):
            yield from self._answers(node, packet, request, expected, asked[node])

    def evaluate(self, request: EvaluationRequest, client_ids: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what clients measure of their models where their data and states lie."""
        return self._evaluation.answers(request, client_ids)

    def settle(self, accepted: Mapping[int, Stamp]) -> bool:
        """Note which answers were accepted; clients learn of it with their next request."""
        asked = self._asked
        self.ledger.accept(
            {client: asked[client][1] for client, stamp in accepted.items() if asked[client][0] == stamp}
        )
        return False  # the ledger takes everything back

    def undo(self, index: int) -> None:
        """Go back to the answers that were accepted before a round."""
        self.ledger.undo(index)

    def receive(self, batch: RoundBatch) -> Sequence[Invitation]:
        """Return whom to ask in the coming round."""
        return batch.invitations

    def release(self) -> None:
        """Do nothing: the data of a round are elsewhere."""

    def checkpoint(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the clients: what their data are known by, and which answers counted."""
        directory = self.directory
        return {"samples": directory.samples.clone(), "data": dict(directory.data), **self.ledger.checkpoint()}

    def resume(self, stored: Mapping[str, Any]) -> None:
        """Go on from a :meth:`checkpoint`."""
        self.directory.resume(stored["samples"], stored["data"])
        self.ledger.resume(stored)

    def _begin_tables(self, roster: Roster) -> None:
        """Tell the server's side which buffers change, so that its global model has their averages."""
        clients, choice = self._simulation.runner.clients, TaskArchitectures(self._simulation.task)
        clients.table.begin(roster.changed_buffers, roster.num_clients)
        for architecture in {choice.first, *map(choice.of, range(roster.num_clients))}:
            clients.of_architecture(architecture).table.begin(roster.changed_buffers, roster.num_clients)

    def _answers(
        self, node: int, packet: Packet, request: Request, expected: Expectation, asked: Sequence[int]
    ) -> Iterator[Answer]:
        where, name = _where(request.stamp), self.directory.name(node)
        try:
            parts = decode_answers(packet)
        except PacketError as error:
            self._leave_out(where, name, str(error))
            return
        for part in parts:
            try:
                answer = decode_answer(part, self._types)
            except (PacketError, TypeError) as error:
                self._leave_out(where, name, str(error))
                continue
            why = self._checks.objection(answer, request, expected, asked)
            client = f"client {', '.join(map(str, answer.client_ids))}, from {name},"
            if why is not None:
                self._leave_out(where, client, why)
                continue
            if not self._logged.fit(answer.tally, answer.client_ids[0]):
                why = f"it has {sorted(answer.tally)}, others {self._logged.names}. Its update counts."
                self._leave_out(where, client, why, what="what is logged")
                answer = replace(answer, tally={}, evaluated=None)
            yield answer.to(self._device)

    def _leave_out(self, where: str, name: str, why: str, what: str = "an answer") -> None:
        warnings.warn(f"{where}: {what} of {name} was left out: {why}", RuntimeWarning, stacklevel=3)


def _where(stamp: Stamp) -> str:
    return f"Round {stamp.round + 1}, phase {stamp.phase + 1}"
