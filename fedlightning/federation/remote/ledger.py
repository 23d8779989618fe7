"""What a server keeps of clients on other machines: which of their answers it accepted last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from fedlightning.federation.remote.generation import Generation, Standing, text_of

_CHECKPOINTS = 2
"""Checkpoints whose generations nodes keep: the last one, and the one before, in case the last was never finished."""


class Ledger:
    """Notes the generation of every client that the server goes on from.

    Attributes:
        federation: Id of the federation, made at its beginning and kept in checkpoints: nodes keep client states under
            it, whichever run of the server asks.
    """

    def __init__(self) -> None:
        """Begin a federation in which no client has answered yet."""
        self.federation = uuid4().hex
        self._accepted: dict[int, Generation] = {}
        self._before: dict[int, Generation] = {}
        self._round: int | None = None
        self._checkpoints: list[dict[int, Generation]] = []

    def begin_round(self, index: int) -> None:
        """Take note that a round begins, to which :meth:`undo` goes back; further calls change nothing."""
        if index != self._round:
            self._round, self._before = index, dict(self._accepted)

    def standing(self, client: int) -> Standing:
        """Return from which state a client answers, and to which states the server may come back."""
        earlier = [found.get(client) for found in (self._before, *self._checkpoints)]
        base = self._accepted.get(client)
        kept = dict.fromkeys(each for each in earlier if each is not None and each != base)
        return Standing(client, base, tuple(kept))

    def accept(self, generations: Mapping[int, Generation]) -> None:
        """Go on from the given generations of some clients."""
        self._accepted |= generations

    def undo(self, index: int) -> None:
        """Go back to the generations before a round, if the round has begun."""
        if index == self._round:
            self._accepted = dict(self._before)
            self._round = None

    def checkpoint(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, in plain types; from now on nodes keep what this checkpoint goes back to."""
        if self._accepted not in self._checkpoints[-1:]:  # several files may be written after a round
            self._checkpoints = [*self._checkpoints[1 - _CHECKPOINTS :], dict(self._accepted)]
        return {
            "federation": self.federation,
            "accepted": {client: text_of(generation) for client, generation in self._accepted.items()},
        }

    def resume(self, stored: Mapping[str, Any]) -> None:
        """Go on from a :meth:`checkpoint`."""
        found = {client: Generation.of(text) for client, text in stored["accepted"].items()}
        self.federation = stored["federation"]
        self._accepted = {client: generation for client, generation in found.items() if generation is not None}
        self._checkpoints = [dict(self._accepted)]
        self._round = None
