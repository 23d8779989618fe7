"""A line for every round, for runs that nobody sits in front of."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fedlightning.callbacks.history import is_metric
from fedlightning.callbacks.progress import rounds_in_total
from fedlightning.core.validation import require


class RoundReport(Callback):
    """Prints a line after rounds and validations, and keeps the last one in a file, for whoever asks how far a run is.

    The file, ``progress.json``, holds ``round``, ``rounds`` (null for no end), ``time`` (seconds since 1970) and
    ``metrics``, numbers by name.

    Args:
        every_n_rounds: Rounds between two lines, at least 1.
        folder: Where to keep the file; null for the trainer's ``default_root_dir``.
    """

    def __init__(self, every_n_rounds: int = 1, folder: str | None = None) -> None:
        self.every_n_rounds = every_n_rounds
        require(self, "every_n_rounds", at_least=1, whole=True)
        self._folder = folder
        self._since = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, and say where the run begins."""
        self._since = time.monotonic()
        if trainer.is_global_zero and trainer.global_step:
            print(f"Goes on after round {trainer.global_step}", flush=True)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report the round."""
        if trainer.is_global_zero and trainer.global_step % self.every_n_rounds == 0:
            now = time.monotonic()
            seconds, self._since = now - self._since, now
            metrics = _plain(_of_round(pl_module))
            print(f"Round {_of(trainer)}: {_shown(metrics)} ({seconds:.1f} s)", flush=True)
            self._keep(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the metrics of the validation."""
        if trainer.is_global_zero and trainer.state.fn == "fit" and not trainer.sanity_checking:
            of_rounds = _of_round(pl_module)
            metrics = _plain({k: v for k, v in trainer.callback_metrics.items() if k not in of_rounds})
            if metrics:
                print(f"Validation after round {trainer.global_step}: {_shown(metrics)}", flush=True)
            self._keep(trainer)

    def _keep(self, trainer: Trainer) -> None:
        folder = Path(self._folder or trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        content = {
            "round": trainer.global_step,
            "rounds": rounds_in_total(trainer),
            "time": time.time(),
            "metrics": _plain(trainer.callback_metrics),
        }
        partial = folder / "progress.json.part"
        partial.write_text(json.dumps(content))
        os.replace(partial, folder / "progress.json")


def _plain(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as numbers, without traffic and time."""
    return {k: float(value) for k, value in metrics.items() if is_metric(k)}


def _of_round(module: LightningModule) -> Mapping[str, Any]:
    """Return what the last round reported."""
    metrics: Any = getattr(module, "round_metrics", {})
    return metrics  # type: ignore[no-any-return]


def _shown(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.4g}" for name, value in sorted(metrics.items()))


def _of(trainer: Trainer) -> str:
    total = rounds_in_total(trainer)
    return f"{trainer.global_step}" if total is None else f"{trainer.global_step} of {total}"
