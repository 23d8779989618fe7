"""The description of a node's last run, in a file beside the states of its clients."""

from __future__ import annotations

import os
from pathlib import Path

from fedlightning.federation.files.whole_files import sync_folder, why_unwritten
from fedlightning.federation.remote.store import StoreError

_FILE = "run.yaml"


def kept_run(states: Path) -> str | None:
    """Return the description of the last run; None before the first.

    Args:
        states: Folder of the states of the node's clients.

    Raises:
        StoreError: If the file cannot be read.
    """
    try:
        return (states / _FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{states / _FILE} cannot be read: {error}. Remove it, and run the server again.") from error


def keep_run(text: str, states: Path) -> None:
    """Write the description of a run, completely or not at all.

    Raises:
        StoreError: If it cannot be written; the one before stays whole.
    """
    target = states / _FILE
    partial = target.with_name(f"{_FILE}.partial-{os.getpid()}")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
        sync_folder(states)
    except OSError as error:
        raise StoreError(f"The run was not kept: {why_unwritten(error, target)}") from error
    finally:
        partial.unlink(missing_ok=True)
