"""What the server says of nodes that do not answer."""

from __future__ import annotations

import warnings
from collections import Counter

from fedlightning.core.errors import FedlightningError, InvalidValueError


class NodeError(FedlightningError, RuntimeError):
    """A node has failed several times in a row, so that it is no use to ask it again."""


class Silence:
    """Warns of a node when it falls silent, not of each of its silences, and stops the run if a node keeps failing.

    A machine that is away, slow or restarted is nothing unusual. A program that fails at every request is.

    Attributes:
        tolerance: Errors of a node in a row with which the run stops.
    """

    def __init__(self, tolerance: int = 3) -> None:
        """Start with all nodes heard of.

        Args:
            tolerance: Errors of a node in a row, at least 1, with which the run stops.

        Raises:
            ValueError: If the tolerance is below 1.
        """
        if tolerance < 1:
            raise InvalidValueError(f"tolerance={tolerance}: expected a number of errors from 1 on.")
        self.tolerance = tolerance
        self._silent: set[int] = set()
        self._faults: Counter[int] = Counter()

    def end(self, node: int) -> None:
        """Take note that a node has answered."""
        self._silent.discard(node)
        self._faults.pop(node, None)

    def begin(self, node: int, name: str, where: str, why: str, is_fault: bool = False) -> None:
        """Take note that a node has not answered.

        Args:
            node: Id of the node.
            name: What messages call it.
            where: The exchange, for messages.
            why: Why it did not answer.
            is_fault: Whether its program failed.

        Raises:
            NodeError: If it has failed too often in a row.
        """
        why = why.rstrip(".")
        if is_fault:
            self._faults[node] += 1
            if self._faults[node] >= self.tolerance:
                raise NodeError(
                    f"{where}: {name} has failed {self._faults[node]} times in a row: {why}. Mend the cause at "
                    "the node, whose log says more, and resume from the last checkpoint."
                )
        if node in self._silent and not is_fault:
            return
        self._silent.add(node)
        further = "" if is_fault else " It is named again once it has answered in between."
        warnings.warn(f"{where}: {name} did not answer: {why}.{further}", RuntimeWarning, stacklevel=2)
