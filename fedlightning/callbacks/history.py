"""The curve of a run: metrics and costs at every validation, kept across resumes."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerFn

Row = dict[str, float]


class History(Callback):
    """Records a row at every validation: round, seconds of training, traffic, and the metrics of validation and round.

    A metric that only some validations log has no part in the rows of the others, though Lightning keeps its value.

    Where the participation has a virtual clock, a row also says how many virtual seconds have passed.

    Traffic is counted in floats and in bytes, upload and download, both from the start and as the mean of the rounds
    since the row before.

    The rows are part of the checkpoint, so a resumed run goes on where it stopped.

    Attributes:
        rows: The rows so far, each a number by name.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._seconds = 0.0
        self._since: float | None = None  # the clock runs while rounds do
        self._kept: dict[str, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self._since = time.perf_counter()

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock."""
        self._seconds, self._since = self._passed, None

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Stop the clock."""
        self._seconds, self._since = self._passed, None

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock during validation."""
        self._seconds, self._since = self._passed, None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add a row, and start the clock again if rounds follow."""
        if trainer.sanity_checking:
            return
        if trainer.state.fn == TrainerFn.FITTING:
            self._since = time.perf_counter()
        traffic, run = getattr(pl_module, "traffic", None), getattr(pl_module, "run", None)
        counts, sizes = ((0, 0), (0.0, 0.0)) if traffic is None or run is None else (traffic, run.traffic_bytes)
        rounds_said = getattr(pl_module, "round_metrics", {})
        present = dict(trainer.callback_metrics)
        new = {name: value for name, value in present.items() if value is not self._kept.get(name)}
        self._kept = present
        logged = {name: value for name, value in new.items() if not name.startswith("train_")} | rounds_said
        metrics = {name: float(value) for name, value in logged.items() if is_metric(name)}
        row = {"round": float(trainer.global_step), "seconds": self._seconds}
        before = self.rows[-1] if self.rows else {}
        rounds = max(1.0, row["round"] - before.get("round", 0.0))
        for way, total, size in zip(("upload", "download"), counts, sizes, strict=True):
            totals = {way: total, f"{way}_bytes": size}
            row |= totals | {f"round_{name}": (now - before.get(name, 0)) / rounds for name, now in totals.items()}
        virtual = None if run is None else run.present.server.traffic.virtual_seconds
        self.rows.append({**metrics, **row, **({} if virtual is None else {"virtual_seconds": virtual})})

    def state_dict(self) -> dict[str, Any]:
        """Return the rows and the seconds of training so far."""
        return {"rows": list(self.rows), "seconds": self._passed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the rows and the seconds of training from a checkpoint."""
        self.rows = list(state_dict["rows"])
        self._seconds, self._since = state_dict["seconds"], None

    @property
    def _passed(self) -> float:
        return self._seconds + (0.0 if self._since is None else time.perf_counter() - self._since)

    def write(self, path: Path) -> None:
        """Save the rows as CSV, with a column for every name in any row."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)


TRAFFIC = frozenset(
    {
        "upload",
        "download",
        "upload_bytes",
        "download_bytes",
        "round_upload",
        "round_download",
        "round_upload_bytes",
        "round_download_bytes",
    }
)
"""Columns of every row that count what has travelled."""

_BESIDE_METRICS = TRAFFIC | {"step", "round_time", "virtual_seconds", "client_lr", "schedule", "regularization"}
"""Names that are logged and are no metrics, up to a slash."""


def is_metric(name: str) -> bool:
    """Return whether a logged value is among the metrics of a row."""
    return name.split("/")[0] not in _BESIDE_METRICS
