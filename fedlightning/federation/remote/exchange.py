"""One exchange of messages with nodes, and what is said of those that do not answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedlightning.federation.remote.carrier import Carrier, Delivery
from fedlightning.federation.remote.enrolment import Directory
from fedlightning.federation.remote.failure import FAILURE, decode_failure
from fedlightning.federation.remote.packet import Packet, PacketError
from fedlightning.federation.remote.silence import Silence


class Exchange:
    """Sends packets to nodes and yields their answers.

    Attributes:
        faults: Why the programs of nodes failed in the last exchange, by node.
    """

    def __init__(self, carrier: Carrier, directory: Directory, silence: Silence) -> None:
        """Take what an exchange needs.

        Args:
            carrier: Carries packets.
            directory: Knows the names of nodes.
            silence: Warns of nodes that do not answer.
        """
        self.faults: dict[int, str] = {}
        self._carrier = carrier
        self._directory = directory
        self._silence = silence

    def answers(
        self, packets: Mapping[int, Packet], group: str, where: str, seconds: float
    ) -> Iterator[tuple[int, Packet]]:
        """Yield the answers of nodes, and take note of those that do not answer.

        Args:
            packets: What is sent, by node.
            group: Names the exchange in the network's records.
            where: Names it in messages to the user.
            seconds: Time until the deadline, above 0.

        Raises:
            NodeError: If a node has failed too often in a row.
        """
        self.faults = {}
        waiting = set(packets)
        for delivery in self._carrier.exchange(packets, group, seconds):
            waiting.discard(delivery.node)
            why, is_fault = _silence(delivery)
            if delivery.packet is None or why:
                if is_fault:
                    self.faults[delivery.node] = why
                self._silence.begin(delivery.node, self._directory.name(delivery.node), where, why, is_fault)
            else:
                self._silence.end(delivery.node)
                yield delivery.node, delivery.packet
        for node in sorted(waiting):
            why = f"nothing came within {seconds:g} seconds."
            self._silence.begin(node, self._directory.name(node), where, why)


def _silence(delivery: Delivery) -> tuple[str, bool]:
    """Return why a node gave no answer, empty if it gave one, and whether its program failed."""
    if delivery.packet is None:
        return delivery.silence, delivery.is_fault
    if delivery.packet.kind != FAILURE:
        return "", False
    try:
        failure = decode_failure(delivery.packet)
    except PacketError as error:
        return str(error), True
    return f"{failure.error}: {failure.text}", True
