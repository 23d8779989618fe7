"""Requests for replies, of which a slow one holds up few others."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from threading import Thread

from flwr.app import Message
from flwr.serverapp import Grid

_AT_ONCE = 8


class Pulls:
    """Pulls the replies to some messages, in eight groups side by side.

    Flower knows of a reply before all parts of it are there, and then waits for them: as long as a slow line needs, or
    three minutes for a node that was killed on the way. Such a reply holds up its own group alone.
    """

    def __init__(self, grid: Grid, numbers: Sequence[str], patience: float = 1.0) -> None:
        """Form the groups; nothing is pulled yet.

        Args:
            grid: What a ServerApp is given; its methods are called by several threads.
            numbers: Of the messages whose replies are asked for.
            patience: Seconds after which a group is left to itself, and looked at the next time.
        """
        self._grid, self._patience = grid, patience
        self._groups = [numbers[first::_AT_ONCE] for first in range(min(_AT_ONCE, len(numbers)))]
        self._begun: dict[int, _Pull] = {}

    def replies(self, waiting: Container[str], seconds: float) -> Iterator[Message]:
        """Yield the replies that are there.

        Args:
            waiting: Numbers of the messages that have no reply yet.
            seconds: How long to wait for a group, at most.

        Raises:
            Exception: Whatever Flower raises.
        """
        for place, group in enumerate(self._groups):
            numbers = [number for number in group if number in waiting]
            if not numbers:
                continue
            left = 0.0
            if place not in self._begun:
                self._begun[place], left = _Pull(self._grid, numbers), min(self._patience, max(0.0, seconds))
            if self._begun[place].is_done(left):
                yield from self._begun.pop(place).replies()


class _Pull:
    """Pulls replies in a thread that is left behind if nobody waits for it, as nothing can stop it."""

    def __init__(self, grid: Grid, numbers: Sequence[str]) -> None:
        self._grid, self._numbers = grid, numbers
        self._replies: list[Message] = []
        self._error: Exception | None = None
        self._thread = Thread(target=self._pull, daemon=True)
        self._thread.start()

    def is_done(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def replies(self) -> list[Message]:
        if self._error is not None:
            raise self._error
        return self._replies

    def _pull(self) -> None:
        try:
            self._replies = list(self._grid.pull_messages(self._numbers))
        except Exception as error:
            self._error = error
