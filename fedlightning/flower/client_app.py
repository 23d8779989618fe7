"""The end of a node that Flower starts anew for every message: it hands bytes on, and does not import torch."""

from __future__ import annotations

from collections.abc import Callable

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedlightning.federation.remote.packet import Packet
from fedlightning.flower.records import to_packet, to_record


def make_client_app(handle: Callable[[bytes], bytes]) -> ClientApp:
    """Return an app that has every message answered by a node's service.

    Args:
        handle: Passes bytes to :meth:`~fedlightning.federation.remote.node.NodeService.handle` and its answer back,
            within this process or to the process that holds data, states and device.
    """
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        data = handle(to_packet(message.content).to_bytes())
        return Message(to_record(Packet.from_bytes(data)), reply_to=message)

    for kind in (app.train, app.evaluate, app.query):
        kind()(answer)
    return app
