"""Schedules of the user's own, given as functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fedlightning.core.errors import InvalidTypeError
from fedlightning.core.schedule import Schedule


@dataclass(frozen=True)
class Function(Schedule):
    """Takes its values from a function, which a configuration can name where Python would give it directly.

    Args:
        function: From the number of rounds done to the value, ``my_module.my_function`` in a configuration. It must
            depend on this number alone: every process and every resumed run calls it anew.
    """

    function: Callable[[int], float]

    def __post_init__(self) -> None:
        if not callable(self.function) or isinstance(self.function, type):
            raise InvalidTypeError(
                f"Function(function={self.function!r}): expected a function of the number of rounds done, e.g. "
                "lambda rounds: 0.1 / (rounds + 1)."
            )

    def __call__(self, rounds: int) -> float:
        """Return what the function returns."""
        return self.function(rounds)
