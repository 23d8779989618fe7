"""The round loop: ask the invited clients, aggregate their answers, settle."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedlightning.federation.client_columns import ClientColumn
from fedlightning.federation.evaluation import join_answers
from fedlightning.federation.protocol import (
    ClientValues,
    EvaluationRequest,
    Invitation,
    Moment,
    Precision,
    Stamp,
    Transport,
)
from fedlightning.federation.recruiter import Recruiter
from fedlightning.federation.round_start import require_no_buffers
from fedlightning.federation.server import FederatedServer


@dataclass(frozen=True)
class RoundResult:
    """Reports the outcome of a round.

    Attributes:
        metrics: Values to log, means over the cohort.
        columns: What each client of this process reported, by name.
        undone: Whether the server's state was put back to its value before the round.
        overflow: Whether the round was undone because 16-bit gradients overflowed; otherwise too few clients answered,
            or too few with finite numbers for the channel's rule.
    """

    metrics: Mapping[str, Tensor | float]
    columns: Mapping[str, ClientColumn] = field(default_factory=dict)
    undone: bool = False
    overflow: bool = False


class RoundLoop:
    """Carries out communication rounds between a server and the clients behind a transport.

    Attributes:
        server: The server half.
        transport: Reaches the client half.
    """

    def __init__(self, server: FederatedServer, transport: Transport) -> None:
        """Connect a server and a transport."""
        self.server = server
        self.transport = transport
        self._at_round_boundary = True

    @property
    def at_round_boundary(self) -> bool:
        """True when server, clients, module and server optimizer belong to the same round: it is safe to checkpoint."""
        return self._at_round_boundary

    def finish_round(self) -> None:
        """Declare that module and server optimizer have caught up with the round that was run."""
        self._at_round_boundary = True

    @torch.no_grad()
    def run(
        self,
        index: int,
        invitations: Sequence[Invitation],
        undo_overflow: bool = False,
        precision: Precision | None = None,
        moment: Moment | None = None,
    ) -> RoundResult:
        """Run one communication round; :meth:`finish_round` ends it.

        An interrupted round leaves the server as it was before. It is safe to checkpoint then unless clients have
        already changed their states, which cannot be undone.

        Args:
            index: Number of the round, from 0.
            invitations: Who is asked, one invitation for each phase of the algorithm.
            undo_overflow: Leave every state as it was if any client returns a non-finite number (loss scaling).
            precision: Precision in which clients evaluate the objective; None for that of the parameters.
            moment: When the round takes place, for clients on other machines; None where nobody asks.

        Raises:
            RoundRejectedError: If no client of a cohort returned finite numbers.
            ValueError: If a schedule gives a value that the algorithm cannot use.
        """
        server = self.server
        precision = Precision() if precision is None else precision
        arrivals = invitations[0].arrivals
        server.begin_round(index, arrivals)
        before = server.snapshot()
        try:
            if server.roster is None and invitations[0].answering:
                server.join(self.transport.join(precision))
                before = server.snapshot()
            if arrivals is not None and server.roster is not None:
                require_no_buffers(server.roster)
            result = self._exchange(index, invitations, undo_overflow, precision, moment)
        except BaseException:
            self.transport.undo(index)
            server.restore(before)
            raise
        if result.undone:
            self.transport.undo(index)
            server.undo(before)
        self._at_round_boundary = False
        if result.overflow:
            return result
        has_channel = server.reception is not None
        sent = server.traffic.metrics(before.traffic, server.point.element_size(), has_channel)
        late = {} if arrivals is None else arrivals.metrics(index)
        return replace(result, metrics={**result.metrics, **sent, **late})

    def _exchange(
        self,
        index: int,
        invitations: Sequence[Invitation],
        undo_overflow: bool,
        precision: Precision,
        moment: Moment | None,
    ) -> RoundResult:
        """Carry out all phases of a round: the server asks, clients answer, the server aggregates, clients settle."""
        server, transport = self.server, self.transport
        metrics: dict[str, Tensor | float] = {}
        columns: dict[str, ClientColumn] = {}
        recruiter = Recruiter(transport)
        for phase, invitation in enumerate(invitations):
            request = server.request(
                Stamp(index, phase), invitation.seed, precision, moment, invitation.asked, invitation.expected
            )
            server.traffic.pass_time(invitation.seconds)
            heard = recruiter.ask(request, invitation)
            if heard is None:
                which = f" in phase {phase + 1} of {len(invitations)}" if len(invitations) > 1 else ""
                _warn_of_a_skipped_round(index, _why_unheard(recruiter.contacted, which))
                server.count_download(request, recruiter.contacted)
                return RoundResult({"skipped": 1.0}, undone=True)
            outcome = server.aggregate(
                request, heard.answers, transport.processes, heard.invited, recruiter.contacted, undo_overflow
            )
            if outcome.overflow:
                return RoundResult(metrics, columns, undone=True, overflow=True)
            if outcome.shortage is not None:
                _warn_of_a_skipped_round(
                    index, f"{outcome.shortage}. Invite more clients (data.participation), or take a rule for fewer."
                )
                return RoundResult({"skipped": 1.0, **outcome.metrics}, undone=True)
            self._settle(outcome.accepted)
            metrics |= outcome.metrics
            columns |= outcome.columns
        return RoundResult(metrics, columns)

    def _settle(self, accepted: Mapping[int, Stamp]) -> None:
        """Let clients keep what was accepted; once any client's state has changed, the round is under way."""
        was_at_boundary = self._at_round_boundary
        self._at_round_boundary = False  # an interruption during the next call may leave some clients changed
        changed = self.transport.settle(accepted)
        self._at_round_boundary = was_at_boundary and not changed

    def evaluate(self, request: EvaluationRequest, client_ids: Sequence[int]) -> dict[str, ClientValues]:
        """Ask clients for metrics of their models, and join the answers of all processes.

        Args:
            request: What they are sent, from :meth:`FederatedServer.evaluation_request`.
            client_ids: Ids of the clients asked; those without evaluation data do not answer.

        Returns:
            The values of all clients that answered, by the name of the metric; the same in every process.
        """
        mine = list(self.transport.evaluate(request, client_ids))
        return join_answers(answer for answers in self.transport.processes.collect(mine) for answer in answers)


def _why_unheard(contacted: int, phase: str) -> str:
    """Return why a phase has no answers, and what can be done.

    Args:
        contacted: Number of clients that were invited.
        phase: Which phase it is, in words; empty if there is one.
    """
    if not contacted:
        return f"nobody was drawn{phase}. Raise the rate of the participation."
    return (
        f"of {contacted} clients invited{phase}, too few answered. Invite more, allow more retries, or lower at_least."
    )


def _warn_of_a_skipped_round(index: int, why: str) -> None:
    """Warn that a round is skipped, with the reason and what can be done; what was sent still counts."""
    warnings.warn(f"Round {index + 1} was skipped: {why}", RuntimeWarning, stacklevel=2)
