"""The app of every node, which Flower's processes run: it passes messages on to the node's worker."""

from __future__ import annotations

import os
from pathlib import Path

from fedlightning.core.errors import UsageError
from fedlightning.flower.client_app import make_client_app
from fedlightning.flower.local_socket import ask

WORKER = "FEDLIGHTNING_WORKER"
"""Environment variable: where the socket of the worker lies."""


def ask_worker(data: bytes, seconds: float) -> bytes:
    """Return the worker's answer to a message.

    Args:
        data: The message.
        seconds: For how long the server waits for the answer.

    Raises:
        AwayError: If the worker is away for longer than it takes to start it again.
        UsageError: If this process was not started by ``fedlightning node start``.
    """
    path = os.environ.get(WORKER)
    if path is None:
        raise UsageError("This node's app needs its worker. Start both by: fedlightning node start --config node.yaml")
    return ask(Path(path), data, seconds)


app = make_client_app(ask_worker)
"""What ``clientapp`` of an app's components names."""
