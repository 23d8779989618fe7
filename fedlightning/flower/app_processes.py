"""A process that has imported what Flower's ``flwr-clientapp`` needs, and forks itself for every message.

``python -m fedlightning.flower.app_processes SOCKET``. Whatever app a message was sent with, the installed
:data:`fedlightning.flower.node_app.app` answers it: nothing of the other is unpacked, installed or imported.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from flwr.supernode.cli import flwr_clientapp
from flwr.supernode.runtime import run_clientapp as process

from fedlightning.core.errors import UsageError
from fedlightning.flower.node_app import app
from fedlightning.flower.supervisor import end_with_parent

_ARGUMENTS = 2**16
_FROM_OUTSIDE = ("install_from_fab", "get_load_client_app_fn", "install_app_dependencies")


def use_installed_app() -> None:
    """Have Flower's process run the installed app, and neither unpack nor install what came with a message.

    Raises:
        UsageError: If this Flower prepares apps in another way than it is known to.
    """
    if missing := [name for name in _FROM_OUTSIDE if not callable(getattr(process, name, None))]:
        raise UsageError(
            f"This version of Flower has no {missing[0]}, so that it is not known how to keep it from running the code "
            "that it is sent. Install the one that is needed: pip install 'fedlightning[flower]'."
        )

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Leave what came over the network packed."""

    def installed(*args: Any, **kwargs: Any) -> Any:
        return lambda fab_id, fab_version, fab_hash: app

    for name in _FROM_OUTSIDE:
        setattr(process, name, installed if name == "get_load_client_app_fn" else nothing)


def serve(path: Path) -> None:
    """Fork a process for every command that is passed on, for ever.

    SIGTERM ends this process and all that it has forked, also those that wait for a link that is away.

    Args:
        path: Where to listen; its folder and the socket are the owner's alone.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    path.parent.chmod(0o700)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    listener.bind(str(path))
    os.umask(before)
    listener.listen(16)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10.0)
            try:
                command = json.loads(connection.makefile().readline(_ARGUMENTS))
            except (OSError, ValueError):
                continue
            own = os.getpid()
            if not os.fork():
                end_with_parent(signal.SIGKILL)
                if os.getppid() != own:
                    os._exit(1)
                listener.close()
                _run(command, connection)


def _run(command: list[str], connection: socket.socket) -> None:
    """Run a command in this process, and end it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv, status = command, 1
    try:
        flwr_clientapp()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:
        print(f"{command[0]}: {error!r}", file=sys.stderr)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            connection.sendall(b"%d\n" % (status & 0xFF))
        finally:
            os._exit(status & 0xFF)


if __name__ == "__main__":
    use_installed_app()
    serve(Path(sys.argv[1]))
