"""What happens to a task while clients' models are evaluated in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fedlightning.federation.protocol import EvaluationAnswer, EvaluationRequest
from fedlightning.tasks.client_evaluation import ClientEvaluation

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule

Listener = Callable[..., None]
"""Called like ``self.log``."""


class EvaluationSession:
    """Shows clients' models one after the other in the place of the task's own, and hears what is logged meanwhile.

    It is the :class:`~fedlightning.federation.transport.Evaluator` of clients in this process: the evaluation that runs
    measures, the server asks for its answers afterwards.

    Attributes:
        listener: Receives what the task logs; None for Lightning's own logging.
        together: Evaluates a batch ``(stage, batch)`` of several clients side by side; None where a batch is one
            client's.
        evaluation: Measures clients' models; None while none is asked for.
    """

    def __init__(self, task: FederatedLightningModule) -> None:
        """Begin with the global model in the task."""
        self.listener: Listener | None = None
        self.together: Callable[[str, Any], None] | None = None
        self.evaluation: ClientEvaluation | None = None
        self._task = task
        self._shows_a_client = False

    def show(self, client: int, own: bool = True) -> None:
        """Put a client's model into the task.

        Args:
            client: Client.
            own: Its personal model; else the global one, beside its personal block and local buffers.
        """
        self._shows_a_client = True
        self._task.run.put_in(client, own, None if self.evaluation is None else self.evaluation.request)

    def restore(self) -> None:
        """Put the global model back, if a client's is in its place."""
        if self._shows_a_client:
            self._shows_a_client = False
            self._task.run.put_in(None)

    def answers(self, request: EvaluationRequest, clients: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what clients of this process measured.

        Raises:
            RuntimeError: If the evaluation that ran was for another request.
        """
        if self.evaluation is None or self.evaluation.request is not request:
            raise RuntimeError("Clients answer the request that their evaluation began with; it was for another one.")
        yield from self.evaluation.answers(clients)

    def close(self) -> None:
        """End an evaluation wherever it stands, and leave the global model in the task."""
        self.listener = self.together = self.evaluation = None
        self.restore()
