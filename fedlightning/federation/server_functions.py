"""The functions of an algorithm that the server calls in a round, with checks of what they return."""

from __future__ import annotations

from dataclasses import is_dataclass
from typing import Any

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidTypeError
from fedlightning.federation.validation import attributes_named, name_of, require_server_state


def message_of(algorithm: Algorithm, phase: int, state: Any) -> Any:
    """Return the message of a phase to every client.

    Args:
        algorithm: The algorithm as it is in this round.
        phase: Number of the phase.
        state: The server's state.

    Raises:
        AttributeError: If the algorithm sets an attribute of itself.
        TypeError: If it returns something else than a dataclass.
    """
    broadcast = algorithm.phases[phase].broadcast
    with attributes_named(algorithm):
        message = broadcast(state)
    if is_dataclass(message) and not isinstance(message, type):
        return message
    raise InvalidTypeError(
        f"{name_of(broadcast, algorithm, 'broadcast')} returned "
        f"{'None' if message is None else f'a {type(message).__name__}'}; expected an object of a frozen dataclass of "
        "tensors and numbers, e.g. fedlightning.algorithms.Point(server.z)."
    )


def state_after(algorithm: Algorithm, phase: int, state: Any, update: Any) -> Any:
    """Return the server's state after a phase.

    Args:
        algorithm: The algorithm as it is in this round.
        phase: Number of the phase.
        state: The server's state before.
        update: What it makes of the clients' answers.

    Raises:
        AttributeError: If the algorithm sets an attribute of itself.
        TypeError: If the new state is of another class.
        ValueError: If a tensor has another shape.
    """
    server_update = algorithm.phases[phase].server_update
    with attributes_named(algorithm):
        after = server_update(state, update)
    require_server_state(state, after, server_update, algorithm)
    return after
