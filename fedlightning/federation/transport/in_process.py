"""A transport to clients in the server's own process, or in several processes that each run the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from fedlightning.core.errors import UsageError
from fedlightning.federation.clients.client import ClientRunner
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
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.federation.validation import require_same_buffers


class Evaluator(Protocol):
    """Measures clients' models on evaluation data that do not reach this process through the transport."""

    def answers(self, request: EvaluationRequest, client_ids: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what the clients of this process measured for a request."""


class InProcess:
    """Simulates a federation: one runner computes all clients of this process, many at a time.

    A round's data come from the data loader, so :meth:`receive` hands them out before the server asks, and
    :meth:`release` lets go of them afterwards. With several processes, each process runs the same server on the answers
    of its own clients. Sums go over all processes; client states never leave the process that holds them.

    Attributes:
        runner: The client half of training.
        processes: Those that share the clients.
    """

    def __init__(
        self, runner: ClientRunner, processes: Processes | None = None, evaluator: Evaluator | None = None
    ) -> None:
        """Reach the clients of a runner.

        Args:
            runner: The client half of training.
            processes: Processes that share the clients; None for one alone.
            evaluator: The client half of evaluation; None where clients never evaluate.
        """
        self.runner = runner
        self.processes: Processes = OneProcess() if processes is None else processes
        self._evaluator = evaluator
        self._batch: RoundBatch | None = None

    def receive(self, batch: RoundBatch) -> list[Invitation]:
        """Hand out the data of the coming round.

        Args:
            batch: The round's cohorts, on the device.

        Returns:
            Who is to be asked, one invitation for each phase.
        """
        self._batch = batch
        return [
            Invitation(
                each.client_ids,
                each.answering,
                each.contacted,
                each.seed,
                expected=each.expected,
                seconds=each.seconds,
                arrivals=each.arrivals,
            )
            for each in batch.cohorts
        ]

    def release(self) -> None:
        """Let go of the round's samples, which would outlive the data module."""
        self._batch = None

    def join(self, precision: Precision) -> Roster:
        """Return the roster of all clients, over all processes."""
        batch = self._round
        return self.runner.join(batch.cohorts[0], batch.samples, precision)

    def ask(self, request: Request, invited: Sequence[int]) -> Iterator[Answer]:
        """Return the answers of this process's clients, chunk by chunk in the order of the cohort."""
        cohort = self._round.cohorts[request.stamp.phase]
        if not self.runner.has_joined:  # a runner for one client, which the first cohort left out
            require_same_buffers(request, self.runner.join(cohort, self._round.samples, request.precision))
        return self.runner.train(request, cohort)

    def evaluate(self, request: EvaluationRequest, client_ids: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what the clients of this process measured.

        Evaluation data come from a data loader, as training data do: the evaluator has seen them before it is asked.
        """
        if self._evaluator is None:
            raise UsageError("These clients were made without an evaluator, so they have nothing to measure with.")
        return self._evaluator.answers(request, client_ids)

    def settle(self, accepted: Mapping[int, Stamp]) -> bool:
        """Keep the new states of accepted clients and drop all others; return whether any has changed for good."""
        return self.runner.clients.settle(accepted)

    def undo(self, index: int) -> None:
        """Put clients back to where they were before a round."""
        self.runner.clients.undo(index)

    def checkpoint(self) -> None:
        """Return nothing: the client states are here, and checkpoints hold them."""

    def resume(self, stored: Any) -> None:
        """Leave what nodes keep to them: here a checkpoint of theirs gives the global model alone."""

    @property
    def _round(self) -> RoundBatch:
        assert self._batch is not None, "receive() comes before the round"
        return self._batch
