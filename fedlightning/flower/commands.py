"""Commands that come before Flower's own in a node's path, so that a message costs no import and runs no other code."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from flwr.supercore.constant import TaskType

from fedlightning.flower import pass_on

_CLIENT_APP = TaskType.CLIENT_APP.value
_REFUSAL = "This node runs fedlightning's own app alone; the command {name} is refused."


def write_commands(folder: Path, socket: Path) -> None:
    """Write the commands that Flower starts for messages and other work.

    ``flwr-clientapp`` passes its arguments on. All others run code that came over the network (agents, models, ...),
    which a node of this package never does: they say so, and fail.

    Args:
        folder: Where to write them; to be put first in PATH.
        socket: Where :mod:`fedlightning.flower.app_processes` listens.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    for name in sorted({each.value for each in TaskType} | {_CLIENT_APP}):
        if name == _CLIENT_APP:
            run = f'exec {shlex.join([sys.executable, "-S", "-E", pass_on.__file__, str(socket)])} "$@"'
        else:
            run = f"echo {shlex.quote(_REFUSAL.format(name=name))} >&2\nexit 1"
        file = folder / name
        file.write_text(f"#!/bin/sh\n{run}\n")
        file.chmod(0o700)
