"""The long-lived process of a node, which holds torch, the task, the data, the states and the device.

``python -m fedlightning.flower.worker CONFIG SOCKET``
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from fedlightning.core.errors import FedlightningError
from fedlightning.flower.built import enter
from fedlightning.flower.host import NodeHost
from fedlightning.flower.local_socket import LocalServer
from fedlightning.flower.log_lines import begin_log
from fedlightning.flower.node_config import read_node_config
from fedlightning.flower.supervisor import REFUSED
from fedlightning.flower.time_limit import limit_of, time_limit

_LOG = logging.getLogger("fedlightning.flower.worker")  # also where the module is run by its file


def main(config_file: str, socket: str) -> None:
    """Answer messages until the process is ended.

    Args:
        config_file: The node's config.
        socket: Where to listen; the socket appears when the worker is ready.
    """
    begin_log("worker")
    try:
        config = read_node_config(config_file)
        enter(config.folder)
        with time_limit(limit_of(longest=config.longest_answer)):
            host = NodeHost(config)
    except FedlightningError as error:
        _LOG.error("%s", error)
        raise SystemExit(REFUSED) from None

    def handle(data: bytes, seconds: float) -> bytes:
        with time_limit(limit_of(seconds, config.longest_answer)):
            return host.handle(data)

    LocalServer(Path(socket)).serve(handle)


if __name__ == "__main__":
    main(*sys.argv[1:])
