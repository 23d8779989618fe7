"""Checkpoints that are either whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write beside the destination, flush to disk, then rename: a kill in the middle leaves the previous file whole.

    Lightning itself writes to the system's temporary folder and moves the file; where that folder lies on another file
    system the move is a copy, and a kill during the copy leaves half a checkpoint. Use it as
    ``Trainer(plugins=AtomicCheckpointIO())``; the command line does so by default.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        """Save to a local ``path``."""
        if storage_options is not None:
            raise TypeError("AtomicCheckpointIO writes local files and takes no storage_options.")
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        for orphan in target.parent.glob(f"{target.name}.partial-*"):  # of a process that was killed while saving
            orphan.unlink(missing_ok=True)
        partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
        try:
            with partial.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
