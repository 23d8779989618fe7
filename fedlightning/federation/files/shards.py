"""Client states of several processes, which each process writes to a folder beside the checkpoint.

The checkpoint file names the folder. The folder is complete before the file is written, and it is never written again.
So a checkpoint always finds the states it was saved with, even if a process is killed at any time.
"""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fedlightning.core.serialisation import CheckpointError
from fedlightning.federation.files.whole_files import write_whole
from fedlightning.federation.processes import Processes


def write_shards(clients: Mapping[str, Any], processes: Processes, root: Path) -> dict[str, Any]:
    """Write this process's client states to a file in a new folder; every process must call this.

    All processes write to the same folder. Process 0 writes nothing: its clients are in the checkpoint itself.

    Args:
        clients: The states, in plain types.
        processes: All processes that hold clients.
        root: Where the folder waits for the checkpoint.

    Returns:
        What the checkpoint records about the folder: its path, and the number of processes.
    """
    token = processes.agree(secrets.token_hex(8))
    folder = root / f".clients-{token}"
    folder.mkdir(parents=True, exist_ok=True)
    if processes.rank:
        write_whole(dict(clients), folder / f"{processes.rank}.pt")
    processes.largest(0)  # wait until all processes have written
    return {"folder": str(folder), "processes": processes.count}


@contextmanager
def placed_shards(checkpoint: Mapping[str, Any], target: Path) -> Iterator[None]:
    """Move the shards of a checkpoint beside its file, and finally remove the shards of the replaced file."""
    shards = _shards_of(checkpoint)
    if shards is not None:
        waiting = Path(shards["folder"])
        placed = target.with_name(f"{target.name}{waiting.name}")
        shutil.move(waiting, placed)
        shards["folder"] = placed.name
    yield
    remove_shards(target, but=None if shards is None else shards["folder"])


def remove_shards(target: Path, but: str | None = None) -> None:
    """Remove the shards beside a checkpoint file, except for the folder named ``but``."""
    for folder in target.parent.glob(f"{target.name}.clients-*"):
        if folder.is_dir() and folder.name != but:
            shutil.rmtree(folder, ignore_errors=True)


def require_no_shards(checkpoint: Mapping[str, Any], path: Any) -> None:
    """Refuse a checkpoint with shards where no folder can lie beside the file.

    Raises:
        CheckpointError: If the checkpoint has shards.
    """
    if _shards_of(checkpoint) is not None:
        raise CheckpointError(
            f"{path} is not on a local disk, but client states of several processes need a folder beside the "
            "checkpoint. Save to a local disk, or train in one process."
        )


def read_shards(checkpoint: Mapping[str, Any], path: Any) -> None:
    """Add the clients of all other processes to a checkpoint, memory-mapped from their files.

    Raises:
        CheckpointError: If the folder is not beside the file, lacks a file, holds a damaged file, has an invalid name,
            or cannot be found because the checkpoint was not opened by its path.
    """
    shards = _shards_of(checkpoint)
    if shards is None:
        return
    if not isinstance(path, str | Path):
        raise CheckpointError("The checkpoint has client states in a folder beside it: open it by its path.")
    file, name, count = Path(path), shards.get("folder"), shards.get("processes")
    if not isinstance(name, str) or not re.fullmatch(r"[^/\\]+\.clients-[0-9a-f]{16}", name) or type(count) is not int:
        raise CheckpointError(f"{path}: 'federation.shards' is damaged or was changed: use an earlier checkpoint.")
    folder = file.with_name(name)
    parts = [folder / f"{rank}.pt" for rank in range(1, count)]
    for part in parts:
        if not part.is_file():
            raise CheckpointError(
                f"{path}: {part} is not there, which holds the states of some clients. Keep the folder beside the "
                "checkpoint when it is moved."
            )
    try:
        others = [torch.load(part, map_location="cpu", weights_only=True, mmap=True) for part in parts]
    except Exception as error:  # what torch raises depends on the byte at which the file breaks off
        raise CheckpointError(
            f"{folder} holds a file that is damaged or cut off: use an earlier checkpoint."
        ) from error
    checkpoint["federation"]["other_clients"] = others


def _shards_of(checkpoint: Mapping[str, Any]) -> Any:
    """Return what a checkpoint records about its shards; None if there are none."""
    federation = checkpoint.get("federation")
    return federation.get("shards") if isinstance(federation, Mapping) else None
