"""What the clients of a node keep, put into the node's runner for one request at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.federation.client_states import Before, StatesByField
from fedlightning.federation.clients.client import ClientRunner
from fedlightning.federation.clients.client_table import ClientTable


class ClientRows:
    """Lets clients stand at given states for a while.

    Between two requests the runner holds no states: which state a client answers from is the server's to say.
    """

    def __init__(self, runner: ClientRunner, architectures: TaskArchitectures) -> None:
        """Take a runner.

        Args:
            runner: Computes the clients.
            architectures: The architectures of the node's task.
        """
        self._runner = runner
        self._architectures = architectures

    def has_table(self, client: int) -> bool:
        """Return whether the runner knows which states a client of this architecture has."""
        return self._table(client).has_states

    def changed_buffers(self, client: int) -> list[str]:
        """Return the names of the buffers that the objective is known to change for a client."""
        return sorted(self._table(client).changed_buffers)

    @contextmanager
    def at(self, states: Mapping[int, StatesByField | None]) -> Iterator[None]:
        """Put states in, and take out whatever is there afterwards.

        Args:
            states: The state of each client by field; None for a client before its first round.
        """
        try:
            for client, own in states.items():
                if own is not None:
                    self._table(client).states.write([client], {name: value[None] for name, value in own.items()})
            yield
        finally:
            for client in states:
                if self.has_table(client):
                    self._table(client).states.restore(Before([], {}, 0))

    def of(self, client: int) -> StatesByField:
        """Return the present state of a client by field."""
        return {name: value[0] for name, value in self._table(client).states.of([client]).items()}

    def _table(self, client: int) -> ClientTable:
        return self._runner.clients.of_architecture(self._architectures.of(client)).table
