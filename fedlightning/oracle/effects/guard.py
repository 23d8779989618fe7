"""State that an objective begins to keep in Python after the first round, found before it counts."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from fedlightning.core.modules import named_parameters
from fedlightning.oracle.effects.absent import Absence
from fedlightning.oracle.effects.side_effects import Memory, hooked_module
from fedlightning.oracle.errors import ObjectiveError, begins_to_write, reads_what_was_left
from fedlightning.oracle.objective import Objective
from fedlightning.oracle.python_generators import python_state, restore_python_state


class Guard:
    """Sees whether an objective has begun to remember something, or to draw random numbers that nobody knew of.

    What it keeps would be one thing for all clients that are evaluated side by side. The first look at an objective
    finds what it does from the start; the guard finds what begins later, before the answers count.
    :class:`~fedlightning.oracle.Sequential` needs no guard.

    Attributes:
        without_what_others_left: Takes away what every evaluation leaves, in which evaluations are to run.
    """

    def __init__(self, objective: Objective, rewritten: Collection[str], left: Collection[str] = ()) -> None:
        """Note what the task remembers now.

        Args:
            objective: What is evaluated.
            rewritten: Attributes that every evaluation writes anew, and none reads before.
            left: Those of them that are another tensor after every evaluation.
        """
        self._objective = objective
        self._rewritten = rewritten
        self._memory = Memory(objective.task, places=objective.places)
        self._frozen = _frozen_versions(objective)
        refuse = partial(reads_what_was_left, objective.name)
        self.without_what_others_left = Absence.of_attributes(objective.task, left, refuse)
        self.begin()

    def begin(self) -> None:
        """Note where the random generators of Python and NumPy are before the next evaluations."""
        self._drawn = python_state()

    def objection(self, batched: bool) -> str | None:
        """Return why the evaluations do not count, with everything put back; None if they do.

        Args:
            batched: Whether clients were evaluated side by side. One after the other they may keep what they like, but
                random numbers of Python and NumPy that nobody knew of were not the clients' own.
        """
        name = self._objective.name
        kept = self._memory.changes(self._rewritten)
        if kept and batched:
            self.restore()
            return f"{name} has begun to change {kept[0]} in Python, once for every client"
        hooked = hooked_module(self._objective.task) if batched else None
        if hooked is not None:
            self.restore()
            return f"'{hooked}' now has a backward hook, which does not run for clients side by side"
        if python_state() != self._drawn and not self._objective.draws_in_python:
            self.restore()
            self._objective.draws_in_python = True
            return (
                f"{name} has begun to draw random numbers from Python or NumPy, which are the same for "
                "clients side by side"
            )
        return None

    def restore(self) -> None:
        """Put everything back that Python code keeps, and Python's random generators.

        Raises:
            ObjectiveError: If the evaluations wrote into what cannot be put back, a frozen parameter or a large tensor.
        """
        lost = self._memory.restore()
        restore_python_state(self._drawn)
        if lost is not None:
            raise ObjectiveError(
                f"{self._objective.name} has begun to change {lost}, which is too large to be put back. Name "
                "fedlightning.oracle.Sequential as oracle, which needs nothing put back."
            )
        for name, version in _frozen_versions(self._objective).items():
            if self._frozen.get(name, version) != version:
                raise begins_to_write(self._objective.name, "frozen parameter", name)


def _frozen_versions(objective: Objective) -> dict[str, int]:
    return {name: p._version for name, p in named_parameters(objective.task) if not p.requires_grad}
