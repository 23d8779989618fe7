"""The round loop: invite, ask, aggregate, settle."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedlightning.federation.evaluation import join_answers
from fedlightning.federation.protocol import ClientValues, EvaluationRequest, Invitation, Stamp, Transport
from fedlightning.federation.server import FederatedServer


@dataclass(frozen=True)
class RoundResult:
    """Reports the outcome of a round.

    Attributes:
        metrics: Values to log, means over the cohort.
        clients: Values that the algorithm logs client by client, ``[S]`` each, for the clients of this process.
        undone: Whether the server's state was put back to its value before the round.
        overflow: Whether the round was undone because 16-bit gradients overflowed; otherwise too few clients answered.
    """

    metrics: Mapping[str, Tensor | float]
    clients: Mapping[str, Tensor] = field(default_factory=dict)
    undone: bool = False
    overflow: bool = False


class RoundLoop:
    """Carries out communication rounds between a server and the clients behind a transport.

    Attributes:
        server: The server half.
        transport: Reaches the client half.
        at_round_boundary: True when the server, the clients and all that follows the server (module, server optimizer)
            belong to the same round, so that it is safe to checkpoint. A round makes it False, :meth:`follow` True.
    """

    def __init__(self, server: FederatedServer, transport: Transport) -> None:
        """Connect a server and a transport."""
        self.server = server
        self.transport = transport
        self.at_round_boundary = True

    @torch.no_grad()
    def run(self, index: int, invitations: Sequence[Invitation], undo_overflow: bool = False) -> RoundResult:
        """Run one communication round.

        Args:
            index: Number of the round, from 0.
            invitations: Who is asked, one invitation for each phase of the algorithm.
            undo_overflow: Leave every state as it was if any client returns a non-finite number (loss scaling).

        Raises:
            RoundRejectedError: If no client of a cohort returned finite numbers.
        """
        server, transport = self.server, self.transport
        before, sent = server.snapshot(), server.traffic.copy()
        metrics: dict[str, Tensor | float] = {}
        clients: dict[str, Tensor] = {}
        undone = overflow = False
        try:
            if server.roster is None and invitations[0].answering:
                server.join(transport.join())
            before = server.snapshot()
            for phase, invitation in enumerate(invitations):
                request = server.request(Stamp(index, phase), invitation.seed)
                if not invitation.answering:
                    _warn_of_a_skipped_round(index, phase, len(invitations), invitation.contacted)
                    server.count_download(request, invitation.contacted)
                    metrics, clients, undone = {"skipped": 1.0}, {}, True
                    break
                answers = transport.ask(request, invitation.clients)
                outcome = server.aggregate(
                    request, answers, transport.processes, invitation.contacted, undo_overflow, invitation.clients
                )
                at_boundary, self.at_round_boundary = self.at_round_boundary, False  # while states change
                self.at_round_boundary = not transport.settle(outcome.accepted) and at_boundary
                if outcome.overflow:
                    undone = overflow = True
                    break
                metrics |= outcome.metrics
                clients |= outcome.per_client
        except BaseException:  # an interrupted round leaves the server as it was before
            transport.settle({})
            server.restore(before)
            server.traffic = sent
            raise
        if undone:
            server.restore(before)
        self.at_round_boundary = False
        if not overflow:
            metrics |= server.traffic.metrics(sent, server.point.element_size())
        return RoundResult(metrics, clients, undone, overflow)

    def evaluate(self, request: EvaluationRequest, clients: Sequence[int]) -> dict[str, ClientValues]:
        """Ask clients what they measure of their models, and join the answers of all processes.

        Args:
            request: What they are sent, from :meth:`FederatedServer.evaluation_request`.
            clients: Ids of the clients asked; those without evaluation data do not answer.

        Returns:
            The values of all clients that answered, by the name of the metric; the same in every process.
        """
        mine = list(self.transport.evaluate(request, clients))
        return join_answers(answer for answers in self.transport.processes.collect(mine) for answer in answers)

    def follow(self) -> None:
        """Declare that all that follows the server (module, server optimizer) has caught up with the round."""
        self.at_round_boundary = True


def _warn_of_a_skipped_round(index: int, phase: int, phases: int, contacted: int) -> None:
    """Warn that a round is skipped because too few clients answered; the download still counts."""
    which = f" in phase {phase + 1} of {phases}" if phases > 1 else ""
    warnings.warn(
        f"Round {index + 1} was skipped: of {contacted} clients invited{which}, too few answered. "
        "Invite more, allow more retries, or lower at_least.",
        RuntimeWarning,
        stacklevel=2,
    )
