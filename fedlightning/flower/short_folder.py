"""A folder for the sockets of one process, which goes with it, or at the next start if it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PREFIX = "fedlightning-"
_LOCK = "lock"


@contextmanager
def short_folder() -> Iterator[Path]:
    """Make a folder of the owner alone, whose path is short enough for sockets; it is removed after the ``with`` block.

    Folders whose processes were killed are removed before. A process holds its folder by a lock, which the system
    releases however the process ends.
    """
    base = Path(tempfile.gettempdir())
    for left in base.glob(f"{_PREFIX}*"):
        _remove_if_left(left)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    handle = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _remove_if_left(folder: Path) -> None:
    """Remove a folder of this user's that no process holds; one without a lock is just being made, or of others."""
    try:
        handle = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            return
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # its process lives
        return
    finally:
        os.close(handle)
