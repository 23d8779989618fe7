"""Files that are either complete or absent."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from fedlightning.core.errors import chain

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk, or of a user's share of it, that has no room left."""


def write_whole(value: Any, target: Path) -> None:
    """Save a value with ``torch.save`` to a file that is complete or absent, with no partial file left beside it.

    Raises:
        OSError: If the file cannot be written.
    """
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except RuntimeError as error:  # torch still closes its archive, and this second error hides the first
        for cause in chain(error):
            if isinstance(cause, OSError) or not isinstance(cause, Exception):
                raise cause from None
        raise
    finally:
        partial.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names of files that were written into a folder last through a power failure."""
    if os.name == "nt":  # folders cannot be opened there; the file system journals their entries
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def why_unwritten(error: OSError, target: Path) -> str:
    """Say why a file could not be written, with the free space if the disk is full."""
    reason = error.strerror or str(error)
    if error.errno not in FULL:
        return f"{target}: {reason}."
    folder = next(folder for folder in (target.absolute(), *target.absolute().parents) if folder.is_dir())
    free = shutil.disk_usage(folder).free
    return f"{target}: {reason} ({free / 2**20:.1f} MiB are free there)."
