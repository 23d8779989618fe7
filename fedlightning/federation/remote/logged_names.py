"""The names of the values that an objective logs, on which clients of other machines must agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class LoggedNames:
    """Tells which answers have the names that most answers of earlier rounds had.

    What an objective logs cannot be known without its data. In the first round the first answer says it; a client that
    says something else then is put right by the others one round later.

    Attributes:
        names: Names that count in the present phase, in alphabetical order; None before the first answer.
    """

    def __init__(self) -> None:
        """Start without any answer."""
        self.names: list[str] | None = None
        self._heard: dict[int, Counter[tuple[str, ...]]] = {}
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._clients: set[int] = set()

    def begin(self, phase: int) -> None:
        """Begin a phase of a round."""
        self._counts, self._clients = self._heard.setdefault(phase, Counter()), set()
        most = self._counts.most_common(1)
        self.names = list(most[0][0]) if most else None

    def fit(self, names: Iterable[str], client: int) -> bool:
        """Return whether an answer has these names; an answer without any has nothing to compare.

        A client has one say in a phase, however often its answer comes.
        """
        found = sorted(names)
        if not found:
            return True
        if client not in self._clients:
            self._clients.add(client)
            self._counts[tuple(found)] += 1
        self.names = found if self.names is None else self.names
        return found == self.names
