"""Counts of the numbers that travel between server and clients."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor

from fedlightning.algorithms.base import PerClient


@dataclass
class Traffic:
    """Counts the numbers sent since the start of a run, over all clients.

    Attributes:
        upload: Numbers sent from clients to the server.
        download: Numbers sent from the server to clients.
    """

    upload: int = 0
    download: int = 0

    def copy(self) -> Traffic:
        """Return a copy of the present counts."""
        return replace(self)

    def metrics(self, before: Traffic, width: int) -> dict[str, float]:
        """Return the numbers and bytes sent so far and in this round, for loggers.

        Args:
            before: The counts at the start of the round.
            width: Bytes per number.
        """
        found: dict[str, float] = {}
        for name in ("upload", "download"):
            total, previous = getattr(self, name), getattr(before, name)
            found |= {name: float(total), f"{name}_bytes": float(total * width)}
            found |= {
                f"round_{name}": float(total - previous),
                f"round_{name}_bytes": float((total - previous) * width),
            }
        return found


def floats(message: Any) -> int:
    """Count the numbers in a message to one client, or in the updates of several clients."""
    if message is None:
        return 0
    values = [getattr(message, each.name) for each in fields(message)]
    tensors = [value.default if isinstance(value, PerClient) else value for value in values]
    return sum(tensor.numel() for tensor in tensors if isinstance(tensor, Tensor))
