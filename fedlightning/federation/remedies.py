"""Advice of messages: the options of the algorithm in use that change or clip its clients' steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.settings import settings

_OF_SOLVER = {"lr": "lr", "local_optimizer": "optimizer", "local_clip": "clip"}
"""Options of clients' steps, and what solvers of subproblems call them."""

LOOK_AT_DATA = "look at the clients' data"
"""What helps with any algorithm."""


def client_options(algorithm: Algorithm) -> dict[str, str]:
    """Return the options of clients' steps that an algorithm or its local solver has.

    Args:
        algorithm: Any algorithm, or one of a user's own.

    Returns:
        Keys of the command line, such as ``model.algorithm.lr``, by ``lr``, ``local_optimizer`` and ``local_clip``;
        those that the algorithm lacks are left out.
    """
    solver = getattr(algorithm, "solver", None)
    own, of_solver = argument_names(algorithm), argument_names(solver)
    found = {}
    for name, there in _OF_SOLVER.items():
        if name in own:
            found[name] = f"model.algorithm.{name}"
        elif there in of_solver:
            found[name] = f"model.algorithm.solver.{there}"
    return found


def smaller_steps(algorithm: Algorithm, *others: str) -> str:
    """Return the sentence that says what helps against clients' steps that are too long.

    Args:
        algorithm: The algorithm in use; options that it lacks are not named.
        others: What helps besides, at least one thing, e.g. ``look at the data``.
    """
    verbs = {"lr": "lower", "local_clip": "set"}
    options = client_options(algorithm)
    advice = [f"{verb} {settings({options[name]: ...})}" for name, verb in verbs.items() if name in options]
    sentence = one_of([*advice, *others])
    return f"{sentence[0].upper()}{sentence[1:]}."


def one_of(items: Sequence[str]) -> str:
    """Return alternatives as an enumeration, ``a``, ``a or b`` or ``a, b, or c``."""
    if len(items) < 3:
        return " or ".join(items)
    return f"{', '.join(items[:-1])}, or {items[-1]}"


def argument_names(value: Any) -> set[str]:
    """Return the names of the arguments of a dataclass's object; empty for anything else."""
    return {each.name for each in fields(value) if each.init} if is_dataclass(value) else set()
