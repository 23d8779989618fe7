"""The classes that messages of an algorithm may be of, found without importing anything that a message names."""

from __future__ import annotations

import sys
from dataclasses import is_dataclass
from typing import Any

from fedlightning.algorithms.base import Algorithm
from fedlightning.federation.remote.packet import PacketError


class MessageTypes:
    """Knows the dataclasses in sight of an algorithm: those in the modules that define it and its bases.

    A machine runs the algorithm it was given itself. What it is sent can only choose among these classes.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        """Look through the modules of an algorithm's class and of its bases."""
        self._algorithm = type(algorithm).__name__
        modules = [sys.modules[cls.__module__] for cls in type(algorithm).__mro__ if cls.__module__ in sys.modules]
        seen = {id(value): value for module in modules for value in vars(module).values()}
        self._classes: dict[str, type[Any]] = {
            type_name(each): each
            for each in seen.values()
            if isinstance(each, type) and is_dataclass(each) and not issubclass(each, Algorithm)
        }

    def named(self, name: str) -> type[Any]:
        """Return the class of a name that :func:`type_name` returned.

        Raises:
            PacketError: If no class in sight of the algorithm has this name.
        """
        if name not in self._classes:
            raise PacketError(
                f"A message is of the class {name!r}, which {self._algorithm} does not use here; nothing was imported "
                "or run. Give the server and all nodes the same algorithm, and define its messages as dataclasses at "
                "the top of the algorithm's module."
            )
        return self._classes[name]


def type_name(cls: type[Any]) -> str:
    """Return the name by which a class is known on all machines."""
    return f"{cls.__module__}:{cls.__qualname__}"
