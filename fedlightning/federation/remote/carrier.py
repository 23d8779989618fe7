"""What a transport over a network needs of the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedlightning.federation.remote.packet import Packet


@dataclass(frozen=True)
class Delivery:
    """Reports what became of a message to a node.

    Attributes:
        node: Id of the node.
        packet: What it answered; None if it did not.
        silence: Why it did not answer, in words; empty if it did.
        is_fault: Whether it did not answer because its program failed, rather than because it cannot be reached.
    """

    node: int
    packet: Packet | None
    silence: str = ""
    is_fault: bool = False


class Carrier(Protocol):
    """Carries packets to nodes and their answers back."""

    def nodes(self) -> Mapping[int, str]:
        """Return the names of the nodes that can be reached now, by id."""

    def exchange(self, packets: Mapping[int, Packet], group: str, seconds: float) -> Iterator[Delivery]:
        """Send a packet to each of some nodes, and yield their answers, first answer first.

        The iterator ends once all have been heard of, or with the deadline, after which answers are lost. Whoever stops
        iterating before does not get later answers either.

        Args:
            packets: What is sent, by node.
            group: Names the exchange in the network's records.
            seconds: Time until the deadline, above 0.
        """
