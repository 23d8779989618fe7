"""What happens to a task while clients' models are evaluated in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule

Listener = Callable[..., None]
"""Called like ``self.log``."""


class EvaluationSession:
    """Shows clients' models one after the other in the place of the task's own, and hears what is logged meanwhile.

    Attributes:
        listener: Receives what the task logs; None for Lightning's own logging.
        together: Evaluates a batch ``(stage, batch)`` of several clients side by side; None where a batch is one
            client's.
    """

    def __init__(self, task: FederatedLightningModule) -> None:
        """Begin with the global model in the task."""
        self.listener: Listener | None = None
        self.together: Callable[[str, Any], None] | None = None
        self._task = task
        self._shows_a_client = False

    def show(self, client: int, own: bool = True) -> None:
        """Put a client's model into the task.

        Args:
            client: Client.
            own: Its personal model; else the global one, beside its personal block and local buffers.
        """
        self._shows_a_client = True
        self._task.run.put_in(client, own)

    def restore(self) -> None:
        """Put the global model back, if a client's is in its place."""
        if self._shows_a_client:
            self._shows_a_client = False
            self._task.run.put_in(None)

    def close(self) -> None:
        """End it wherever it stands: an evaluation was cut short."""
        self.listener = self.together = None
        self.restore()
