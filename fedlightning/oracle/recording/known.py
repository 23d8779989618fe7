"""What was recorded in one round, kept for the next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedlightning.oracle.recording.glance import Glance
    from fedlightning.oracle.recording.outline import Outline
    from fedlightning.oracle.recording.replay import Replay

MOST_KINDS = 256
"""Recordings of that many kinds are kept: of different shapes, say."""

PATIENCE = 8
"""Evaluators that may begin without using a recording that keeps tensors of the user's alive; a round has a few."""


@dataclass
class KnownRecording:
    """Holds a recording, and what tells whether it is right.

    Attributes:
        outline: What the function did.
        replay: Replays it.
        used: When it was used last.
        state: State of the function; recordings in one state were all right in the same phase of a round.
        glance: What a glance showed while the recording was right; None if there was none, or it is no use.
        was_glanced_at: Whether a glance was tried.
    """

    outline: Outline
    replay: Replay
    used: int
    state: int
    glance: Glance | None = None
    was_glanced_at: bool = False


class KnownRecordings:
    """Keeps recordings by what they are of, and knows of what it is no use to keep them."""

    def __init__(self) -> None:
        """Start without recordings."""
        self._kept: dict[Any, KnownRecording | None] = {}  # the one used last stands last; None if it is no use
        self._begun = 0
        self._states = 0

    def __len__(self) -> int:
        return len(self._kept)

    def begin(self) -> KnownInRound:
        """Return what is known where another evaluator begins, and let go of tensors that none has used for long."""
        self._begun += 1
        for kind, recorded in list(self._kept.items()):
            if recorded is not None and recorded.outline.held and self._begun - recorded.used > PATIENCE:
                del self._kept[kind]
        return KnownInRound(self)

    def of(self, kind: Any) -> KnownRecording | None:
        """Return what was recorded of a kind; None if nothing is kept."""
        recorded = self._kept.get(kind)
        if recorded is None:
            return None
        recorded.used = self._begun
        self._kept[kind] = self._kept.pop(kind)
        return recorded

    def is_of_use(self, kind: Any) -> bool:
        """Return whether a recording of this kind may serve another round, as far as is known."""
        return self._kept.get(kind, ...) is not None

    def keep(self, kind: Any, outline: Outline, replay: Replay | None, state: int | None) -> KnownRecording | None:
        """Keep a recording if it may serve other rounds, and otherwise that it is no use.

        Args:
            kind: What it is of.
            outline: What the function did.
            replay: The recording; None if there is none.
            state: State of the function; None for one that nothing else was recorded in.
        """
        if replay is None or not replay.is_lasting:
            self.give_up(kind)
            return None
        self._states += 1
        recorded = KnownRecording(outline, replay, self._begun, self._states if state is None else state)
        self._put(kind, recorded)
        return recorded

    def give_up(self, kind: Any) -> None:
        """Keep nothing of a kind, which is another thing in every round."""
        self._put(kind, None)

    def _put(self, kind: Any, recorded: KnownRecording | None) -> None:
        self._kept.pop(kind, None)
        if len(self._kept) >= MOST_KINDS:
            del self._kept[next(iter(self._kept))]
        self._kept[kind] = recorded


@dataclass
class _Seen:
    """Holds what has been seen of a function in this round: its state, and by id what existed before its calls."""

    state: int
    held: dict[int, Any] = field(default_factory=dict)


class KnownInRound:
    """Knows what was recorded in other rounds, and of what it has been seen to be right in this one.

    A function of S clients below ``vmap`` computes each as if it were alone, and cannot see how many they are. Once
    it has done for one number of clients what it did in an earlier round, it does so for every other number that was
    recorded or compared beside that one. Calls for that other number were later ones, though, which may have found what
    an earlier call had made, such as a tensor that is kept until something changes. So they must hold no tensors but
    those that were held in what has been seen.
    """

    def __init__(self, known: KnownRecordings) -> None:
        """Begin a phase of a round, in which nothing has been seen."""
        self._known = known
        self._seen: dict[Any, _Seen] = {}  # by what clients are like

    def right(self, kind: Any, alike: Any) -> Replay | None:
        """Return the recording of a kind if it is known to be right without a look; None if not.

        Args:
            kind: What the recording is of.
            alike: What it has in common with recordings for other numbers of clients.
        """
        seen = self._seen.get(alike)
        recorded = None if seen is None else self._known.of(kind)
        if seen is None or recorded is None or recorded.state != seen.state:
            return None
        return recorded.replay if all(id(each) in seen.held for each in recorded.outline.held) else None

    def earlier(self, kind: Any) -> KnownRecording | None:
        """Return what was recorded of a kind in another round; None if nothing is kept."""
        return self._known.of(kind)

    def is_of_use(self, kind: Any) -> bool:
        """Return whether a recording of this kind may serve another round, as far as is known."""
        return self._known.is_of_use(kind)

    def agrees(self, kind: Any, alike: Any) -> None:
        """Take note that the function does in this round what was recorded of a kind."""
        recorded = self._known.of(kind)
        if recorded is not None:
            self._see(recorded, alike)

    def keep(self, kind: Any, alike: Any, outline: Outline, replay: Replay | None) -> None:
        """Keep a recording of this round if it may serve others, and otherwise that it is no use."""
        seen = self._seen.get(alike)
        recorded = self._known.keep(kind, outline, replay, None if seen is None else seen.state)
        if recorded is not None:
            self._see(recorded, alike)

    def _see(self, recorded: KnownRecording, alike: Any) -> None:
        seen = self._seen.setdefault(alike, _Seen(recorded.state))
        recorded.state = seen.state
        seen.held.update({id(each): each for each in recorded.outline.held})

    def give_up(self, kind: Any) -> None:
        """Keep nothing of a kind, which is another thing in every round."""
        self._known.give_up(kind)
