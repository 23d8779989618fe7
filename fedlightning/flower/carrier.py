"""Carries packets to nodes over Flower's grid, by a loop of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from fedlightning.core.validation import require
from fedlightning.federation.remote.carrier import Delivery
from fedlightning.federation.remote.evaluation_codec import EVALUATE
from fedlightning.federation.remote.packet import Packet, PacketError
from fedlightning.federation.remote.training_codec import ASK
from fedlightning.flower.pull import Pulls
from fedlightning.flower.records import to_packet, to_record

_TYPES = {ASK: MessageType.TRAIN, EVALUATE: MessageType.EVALUATE}

_FAULTS = {1: "its app could not be loaded", 2: "its app raised an error", 7: "its app is invalid"}
_SILENCES = {
    0: "Flower does not say why",
    3: "its deadline passed",
    4: "its answer is gone",
    5: "it cannot be reached",
    6: "a mod refused the message",
    8: "its process ended while it worked",
}
"""What Flower's codes of errors mean for a node, by the number that stands in its messages."""


class FlowerCarrier:
    """Pushes messages and pulls answers until all are there or the deadline has passed.

    The deadline is also the messages' time to live: a node that has not begun by then does not begin, and late answers
    are refused by Flower. Answers can only be pulled by the number of their message, and those numbers are forgotten
    when an exchange ends, so that nothing of one exchange gets into another. A node that is slow to upload its answer,
    or killed on the way, holds up neither the deadline nor the answers of others, save those fetched together with it.
    """

    def __init__(
        self,
        grid: Grid,
        poll: float = 0.25,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Use a grid.

        Args:
            grid: What a ServerApp is given.
            poll: Seconds between two looks for answers, above 0.
            clock: Tells the time in seconds.
            sleep: Waits for so many seconds.
        """
        self.poll = poll
        require(self, "poll", above=0.0)
        self._grid = grid
        self._clock = clock
        self._sleep = sleep

    def nodes(self) -> Mapping[int, str]:
        """Return the names of the nodes that Flower believes to be online, by id."""
        return {node.node_id: node.name or str(node.node_id) for node in self._grid.get_nodes()}

    def exchange(self, packets: Mapping[int, Packet], group: str, seconds: float) -> Iterator[Delivery]:
        """Send a packet to each of some nodes, and yield their answers, first answer first."""
        end = self._clock() + seconds
        messages = [
            Message(to_record(packet), node, _TYPES.get(packet.kind, MessageType.QUERY), ttl=seconds, group_id=group)
            for node, packet in packets.items()
        ]
        waiting: dict[str, int] = {}
        for number, node in zip(self._grid.push_messages(messages), packets, strict=True):
            if number:
                waiting[number] = node
            else:
                yield Delivery(node, None, "Flower did not take the message")
        pulls = Pulls(self._grid, list(waiting))
        while waiting:
            for reply in pulls.replies(waiting, end - self._clock()):
                answered = waiting.pop(reply.metadata.reply_to_message_id, None)
                if answered is not None:
                    yield _delivery(answered, reply)
            left = end - self._clock()
            if left <= 0:
                return
            if waiting:
                self._sleep(min(self.poll, left))


def _delivery(node: int, reply: Message) -> Delivery:
    """Return what a reply says: an answer, or why there is none."""
    if reply.has_error():
        code, reason = reply.error.code, reply.error.reason or ""
        why = _FAULTS.get(code) or _SILENCES.get(code) or f"Flower's error {code}"
        return Delivery(node, None, f"{why}{f': {reason}' if reason else ''}", code in _FAULTS)
    try:
        return Delivery(node, to_packet(reply.content))
    except PacketError as error:
        return Delivery(node, None, str(error), is_fault=True)
