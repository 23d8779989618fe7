"""The end of a node that Flower starts anew for every message: it hands bytes on, and does not import torch."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedlightning.federation.remote.packet import Packet
from fedlightning.flower.local_socket import AwayError
from fedlightning.flower.records import to_packet, to_record

_UNAVAILABLE = 5
"""Flower's number for a node that cannot be reached, which says nothing against its program."""


def make_client_app(handle: Callable[[bytes, float], bytes]) -> ClientApp:
    """Return an app that has every message answered by a node's service.

    Args:
        handle: Passes bytes to :meth:`~fedlightning.federation.remote.node.NodeService.handle` and its answer back,
            within this process or to the process that holds data, states and device; it is also given the seconds for
            which the server waits. If that process is away, it raises an
            :class:`~fedlightning.flower.local_socket.AwayError`, which the server hears as silence.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        try:
            data = handle(to_packet(message.content).to_bytes(), message.metadata.ttl)
        except AwayError as error:
            return Message(Error(_UNAVAILABLE, f"the worker of the node: {error}"), reply_to=message)
        return Message(to_record(Packet.from_bytes(data)), reply_to=message)

    for kind in (app.train, app.evaluate, app.query):
        kind()(answer)
    return app
