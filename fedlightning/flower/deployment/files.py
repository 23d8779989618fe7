"""Files that are made once: private ones are for their owner alone, and none takes the place of another."""

from __future__ import annotations

import os
from pathlib import Path

from fedlightning.core.errors import InvalidValueError

PRIVATE, PUBLIC, PRIVATE_FOLDER = 0o600, 0o644, 0o700


def write_new(path: Path, content: bytes | str, mode: int = PUBLIC) -> None:
    """Write a file that is not there yet, with its mode from the first byte on.

    Args:
        path: In a folder that exists.
        content: Its content, text as UTF-8.
        mode: Permissions; :data:`PRIVATE` for keys.

    Raises:
        ValueError: If there is such a file.
    """
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise InvalidValueError(f"{path} exists and is not overwritten. Move it away first.") from None
    with os.fdopen(number, "wb") as file:
        os.fchmod(number, mode)  # whatever the process's umask takes away
        file.write(content.encode() if isinstance(content, str) else content)


def replace(path: Path, content: bytes | str, mode: int = PUBLIC) -> None:
    """Write a file in place of the one that may be there; readers see the old one or the new one, whole.

    Args:
        path: In a folder that exists.
        content: Its content, text as UTF-8.
        mode: Permissions.
    """
    other = path.with_name(f".{path.name}.{os.getpid()}")
    other.unlink(missing_ok=True)
    write_new(other, content, mode)
    os.replace(other, path)


def make_private_folder(path: Path) -> None:
    """Make a folder that only its owner may enter, unless it is there."""
    path.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    path.chmod(PRIVATE_FOLDER)
