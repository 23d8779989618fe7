"""State that an objective begins to keep in Python after the first round, found before it counts."""

from __future__ import annotations

from collections.abc import Collection

from fedlightning.oracle.objective import Objective
from fedlightning.oracle.randomness import python_state, restore_python_state
from fedlightning.oracle.side_effects import Memory


class Guard:
    """Sees whether an objective has begun to remember something, or to draw random numbers that nobody knew of.

    What it keeps would be one thing for all clients that are evaluated side by side. The first look at an objective
    finds what it does from the start; the guard finds what begins later, before the answers count.
    """

    def __init__(self, objective: Objective, rewritten: Collection[str]) -> None:
        """Note what the task remembers now.

        Args:
            objective: What is evaluated.
            rewritten: Attributes that every evaluation writes anew, and none reads before.
        """
        self._objective = objective
        self._rewritten = rewritten
        self._memory = Memory(objective.task)
        self._drawn = python_state()

    def objection(self, batched: bool) -> str | None:
        """Return why the evaluations do not count, with everything put back; None if they do.

        Args:
            batched: Whether clients were evaluated side by side. One after the other they may keep what they like, but
                random numbers of Python and NumPy that nobody knew of were not the clients' own.
        """
        name = self._objective.name
        kept = [attribute for attribute in self._memory.changes() if attribute not in self._rewritten]
        if kept and batched:
            self.restore()
            return f"{name}.objective has begun to change {kept[0]} in Python, once for every client"
        if python_state() != self._drawn and not self._objective.draws_in_python:
            self.restore()
            self._objective.draws_in_python = True
            return (
                f"{name}.objective has begun to draw random numbers from Python or NumPy, which are the same for "
                "clients side by side"
            )
        return None

    def restore(self) -> None:
        """Put attributes and Python's random generators back."""
        self._memory.restore()
        restore_python_state(self._drawn)
