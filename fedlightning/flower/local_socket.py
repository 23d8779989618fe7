"""Messages between processes of one machine and one user, over a Unix socket; torch is not needed.

A message is its length in eight bytes, little-endian, and its bytes. A connection carries the seconds for which the
answer is waited for, as a number of eight bytes, then one message and its answer.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

from fedlightning.core.errors import FedlightningError

LARGEST = 2**33
"""Bytes of the largest message, 8 GiB; what claims to be larger is not read."""
_PIECE = 2**20
_STALLED = 60.0
_BROKEN = 3
_SECONDS = struct.Struct("<d")
_LOG = logging.getLogger(__name__)


class AwayError(FedlightningError, OSError):
    """The process that answers is not there."""


class BrokenMessageError(FedlightningError, OSError):
    """A message breaks off, or claims to be larger than any is."""


class LocalServer:
    """Answers messages that come to a socket, one after the other.

    The socket can be opened by its owner alone, and so can its folder.
    """

    def __init__(self, path: Path, largest: int = LARGEST) -> None:
        """Open the socket; from now on messages wait for :meth:`serve`.

        Args:
            path: Where the socket lies; what lies there is removed.
            largest: Bytes of the largest message that is read.

        Raises:
            OSError: If it cannot be opened there, for example because the path is longer than about 100 characters.
        """
        self._largest = largest
        path.parent.chmod(0o700)
        path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)  # the socket is 0600 from its first moment on
        try:
            self._socket.bind(str(path))
        finally:
            os.umask(before)
        self._socket.listen(16)

    def serve(self, handle: Callable[[bytes, float], bytes], until: Callable[[], bool] = lambda: False) -> None:
        """Answer messages until told to stop; a message that breaks off is left out.

        Args:
            handle: Returns the answer to a message; it is also given the seconds for which somebody waits for it.
            until: Whether to stop, asked before each message.
        """
        while not until():
            connection, _ = self._socket.accept()
            with connection:
                connection.settimeout(_STALLED)
                try:
                    (seconds,) = _SECONDS.unpack(_exactly(connection, _SECONDS.size))
                    data = received(connection, self._largest)
                    send(connection, handle(data, seconds))
                except OSError as error:  # the other process has ended, or stalls
                    _LOG.warning("A message was not answered: %s", error)

    def close(self) -> None:
        """Take no more messages."""
        self._socket.close()


def ask(path: Path, data: bytes, seconds: float, patience: float = 120.0, pause: float = 0.25) -> bytes:
    """Return the answer of the process behind a socket, however long it computes.

    While the process is not there, because it is being started again, the message waits. It is sent again if the
    process ends before it has answered, and somebody waits still.

    Args:
        path: Where the socket lies.
        data: The message.
        seconds: For how long somebody waits for the answer.
        patience: Seconds to wait for the process to be there.
        pause: Seconds between two looks for it.

    Raises:
        AwayError: If the process is not there after that time, has ended three times over this message, or ends when
            nobody waits any more.
    """
    begun, broken = time.monotonic(), 0
    end = begun + patience
    while True:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            try:
                connection.connect(str(path))
            except OSError as error:
                if time.monotonic() >= end:
                    raise AwayError(f"it was not there for {patience:g} seconds ({error.strerror})") from None
                time.sleep(pause)
                continue
            try:
                connection.sendall(_SECONDS.pack(seconds))
                send(connection, data)
                return received(connection, LARGEST)
            except OSError as error:
                broken, end = broken + 1, time.monotonic() + patience
                if broken == _BROKEN:
                    raise AwayError(f"it ended {broken} times before it had answered this message") from error
                if time.monotonic() >= begun + seconds:
                    raise AwayError(
                        f"it ended before it had answered this message, after {seconds:g} seconds"
                    ) from error
        time.sleep(pause)


def send(connection: socket.socket, data: bytes) -> None:
    """Send one message.

    Raises:
        OSError: If the other end is gone.
    """
    connection.sendall(len(data).to_bytes(8, "little"))
    if data:  # the other end may have answered an empty message already, and be gone
        connection.sendall(data)


def received(connection: socket.socket, largest: int) -> bytes:
    """Return one message.

    Raises:
        BrokenMessageError: If it breaks off or is too large.
        OSError: If the other end is gone or stalls.
    """
    size = int.from_bytes(_exactly(connection, 8), "little")
    if size > largest:
        raise BrokenMessageError(f"a message claims to have {size} bytes; at most {largest} are read")
    return bytes(_exactly(connection, size))


def _exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(min(size - len(data), _PIECE))
        if not piece:
            raise BrokenMessageError(f"a message breaks off after {len(data)} of {size} bytes")
        data += piece
    return data
