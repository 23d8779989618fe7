"""Requests for replies, of which a slow one holds up few others."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from threading import Thread

from flwr.app import Message
from flwr.serverapp import Grid

_AT_ONCE = 8
_GONE = 3
"""Flower's number for a message that the link does not have any more, since its reply is being fetched."""


class Pulls:
    """Pulls the replies to some messages, in eight groups side by side.

    Flower knows of a reply before all parts of it are there, and then waits for them: as long as a slow line needs, or
    three minutes for a node that was killed on the way. Meanwhile the others of its group are asked for one by one, so
    that it holds up those alone that were fetched together with it.
    """

    def __init__(self, grid: Grid, numbers: Sequence[str], patience: float = 1.0) -> None:
        """Form the groups; nothing is pulled yet.

        Args:
            grid: What a ServerApp is given; its methods are called by several threads.
            numbers: Of the messages whose replies are asked for.
            patience: Seconds after which a request is left to itself, and looked at the next time.
        """
        self._grid, self._patience = grid, patience
        self._groups = [list(numbers[first::_AT_ONCE]) for first in range(min(_AT_ONCE, len(numbers)))]
        self._slow: list[_Pull] = []
        self._held: dict[str, _Pull] = {}

    def replies(self, waiting: Container[str], seconds: float) -> Iterator[Message]:
        """Yield the replies that are there.

        Args:
            waiting: Numbers of the messages that have no reply yet.
            seconds: How long to wait for a group, at most.

        Raises:
            Exception: Whatever Flower raises.
        """
        answered: set[str] = set()
        for pull in [each for each in self._slow if each.is_done(0.0)]:
            self._slow.remove(pull)
            self._held = {number: other for number, other in self._held.items() if other is not pull}
            came = pull.replies()
            yield from came
            answered |= {reply.metadata.reply_to_message_id for reply in came}
        for group in list(self._groups):
            numbers = [each for each in group if each in waiting and each not in answered and each not in self._held]
            if not numbers:
                continue
            pull = _Pull(self._grid, numbers)
            if pull.is_done(min(self._patience, max(0.0, seconds))):
                yield from self._new(pull.replies())
            else:
                self._leave(pull, group)

    def _leave(self, pull: _Pull, group: list[str]) -> None:
        """Leave a request to itself, and ask for each of its group alone from now on."""
        self._slow.append(pull)
        if len(pull.numbers) == 1:
            self._held[pull.numbers[0]] = pull
        self._groups.remove(group)
        self._groups += [[number] for number in group]

    def _new(self, replies: Sequence[Message]) -> Iterator[Message]:
        """Yield replies without those that a slow request is fetching already, which is what the link says of them."""
        for reply in replies:
            number = reply.metadata.reply_to_message_id
            slow = next((pull for pull in self._slow if number in pull.numbers), None)
            if slow is not None and reply.has_error() and reply.error.code == _GONE:
                self._held[number] = slow
            else:
                yield reply


class _Pull:
    """Pulls replies in a thread that is left behind if nobody waits for it, as nothing can stop it.

    Attributes:
        numbers: Of the messages whose replies are asked for.
    """

    def __init__(self, grid: Grid, numbers: Sequence[str]) -> None:
        self.numbers = numbers
        self._grid = grid
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
            self._replies = list(self._grid.pull_messages(self.numbers))
        except Exception as error:
            self._error = error
