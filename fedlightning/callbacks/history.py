"""The curve of a run, kept across resumes."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

Row = dict[str, float]


class History(Callback):
    """One row a validation: round, upload, download, seconds of training, and every validation metric.

    The rows are part of the checkpoint, so a resumed run goes on where it stopped.

    Attributes:
        rows: The rows so far.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._seconds = 0.0
        self._since = time.perf_counter()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._since = time.perf_counter()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock during validation."""
        self._seconds += time.perf_counter() - self._since

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add a row."""
        self._since = time.perf_counter()
        if trainer.sanity_checking:
            return
        traffic = getattr(pl_module, "traffic", None)
        upload, download = (0, 0) if traffic is None else traffic
        metrics = {
            name: float(value) for name, value in trainer.callback_metrics.items() if not name.startswith("train_")
        }
        width = next(pl_module.parameters()).element_size()
        row = {
            "round": float(trainer.global_step),
            "upload": upload,
            "download": download,
            "upload_bytes": upload * width,
            "download_bytes": download * width,
            "seconds": self._seconds,
        }
        self.rows.append({**{k: v for k, v in metrics.items() if k not in _NOT_VALIDATION}, **row})

    def state_dict(self) -> dict[str, Any]:
        """Rows and time so far."""
        return {"rows": list(self.rows), "seconds": self._seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.rows = list(state_dict["rows"])
        self._seconds = state_dict["seconds"]

    def write(self, path: Path) -> None:
        """Save the rows as CSV."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)


_NOT_VALIDATION = {
    "step",
    "drift",
    "dual_norm",
    "clients",
    "left_out",
    "skipped",
    "upload",
    "download",
    "upload_bytes",
    "download_bytes",
    "round_upload",
    "round_download",
    "round_time",
    "regularization",
}
