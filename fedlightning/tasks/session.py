"""The state of a task while clients' models are evaluated in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedlightning.core.errors import UsageError
from fedlightning.federation.protocol import EvaluationAnswer, EvaluationRequest
from fedlightning.tasks.client_evaluation import ClientEvaluation

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule

Listener = Callable[..., None]
"""Called like ``self.log``."""


class EvaluationSession:
    """Puts clients' models into the task one after the other, and hears what is logged meanwhile.

    It is the :class:`~fedlightning.federation.transport.Evaluator` of clients in this process. They measure while the
    evaluation loop runs, and the server asks for their answers afterwards.

    Attributes:
        listener: Receives what the task logs; None for Lightning's own logging.
        together: Evaluates a batch ``(stage, batch)`` of several clients side by side; None where a batch is one
            client's.
        evaluation: Measures clients' models; None while none is asked for.
    """

    def __init__(self, task: FederatedLightningModule) -> None:
        """Start with the global model in the task."""
        self.listener: Listener | None = None
        self.together: Callable[[str, Any], None] | None = None
        self.evaluation: ClientEvaluation | None = None
        self._task = task
        self._shows_a_client = False

    def show(self, client: int, own: bool = True) -> None:
        """Put a client's model into the task.

        Args:
            client: Id of the client.
            own: Whether to take the client's personal model; else the global one, beside the client's personal block
                and local buffers.
        """
        self._shows_a_client = True
        self._task.run.put_in(client, own, None if self.evaluation is None else self.evaluation.request)

    def restore(self) -> None:
        """Put the global model back into the task, if it holds a client's."""
        if self._shows_a_client:
            self._shows_a_client = False
            self._task.run.put_in(None)

    def answers(self, request: EvaluationRequest, clients: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what clients of this process measured.

        Raises:
            RuntimeError: If the evaluation that ran was for another request.
        """
        if self.evaluation is None or self.evaluation.request is not request:
            raise UsageError("Clients answer the request that their evaluation began with; it was for another one.")
        yield from self.evaluation.answers(clients)

    def close(self) -> None:
        """End an evaluation wherever it stands, and leave the global model in the task."""
        self.listener = self.together = self.evaluation = None
        self.restore()
