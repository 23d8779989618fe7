"""Stands in for Flower's command ``flwr-clientapp``: it has a process that imported everything run the command.

Run as a script, without the package and without site-packages: ``python -S -E pass_on.py SOCKET ARGUMENTS``.
"""

from __future__ import annotations

import json
import socket
import sys
import time

PATIENCE = 30.0
"""Seconds in which the process behind the socket is started again, if it has ended."""


def main(path: str, *arguments: str) -> int:
    """Pass the arguments on, wait for the end of the command, and return its exit status."""
    end = time.monotonic() + PATIENCE
    while True:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(path)
            except OSError:
                if time.monotonic() >= end:
                    raise
                time.sleep(0.1)
                continue
            connection.sendall(json.dumps(["flwr-clientapp", *arguments]).encode() + b"\n")
            return int(connection.makefile().readline() or 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
