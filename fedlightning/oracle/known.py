"""What was recorded in one round, kept for the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlightning.oracle.outline import Outline
    from fedlightning.oracle.replay import Replay

MOST_KINDS = 256
"""Recordings of that many kinds are kept: of different shapes, say."""

PATIENCE = 8
"""Evaluators that may begin without using a recording that keeps tensors of the user's alive; a round has a few."""


@dataclass
class _Recorded:
    outline: Outline
    replay: Replay
    used: int


class KnownRecordings:
    """Keeps recordings by what they are of, and knows of what it is no use to keep them."""

    def __init__(self) -> None:
        """Start without recordings."""
        self._kept: dict[Any, _Recorded | None] = {}  # the one used last stands last; None if it is no use
        self._begun = 0

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self) -> None:
        """Take note that another evaluator begins, and let go of tensors that none has used for long."""
        self._begun += 1
        for kind, recorded in list(self._kept.items()):
            if recorded is not None and recorded.outline.held and self._begun - recorded.used > PATIENCE:
                del self._kept[kind]

    def of(self, kind: Any) -> tuple[Outline, Replay] | None:
        """Return what was recorded of a kind; None if nothing is kept."""
        recorded = self._kept.get(kind)
        if recorded is None:
            return None
        recorded.used = self._begun
        self._kept[kind] = self._kept.pop(kind)
        return recorded.outline, recorded.replay

    def is_of_use(self, kind: Any) -> bool:
        """Return whether a recording of this kind may serve another round, as far as is known."""
        return self._kept.get(kind, ...) is not None

    def keep(self, kind: Any, outline: Outline, replay: Replay | None) -> None:
        """Keep a recording if it may serve other rounds, and otherwise that it is no use."""
        lasting = replay if replay is not None and replay.is_lasting else None
        self._put(kind, None if lasting is None else _Recorded(outline, lasting, self._begun))

    def give_up(self, kind: Any) -> None:
        """Keep nothing of a kind, which is another thing in every round."""
        self._put(kind, None)

    def _put(self, kind: Any, recorded: _Recorded | None) -> None:
        self._kept.pop(kind, None)
        if len(self._kept) >= MOST_KINDS:
            del self._kept[next(iter(self._kept))]
        self._kept[kind] = recorded
