"""The callback that keeps a recent checkpoint at all times."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.exceptions import SIGTERMException

from fedlightning.callbacks.run_folder import run_folder
from fedlightning.core.interrupts import deferred_interrupts
from fedlightning.core.validation import require


class LastCheckpoint(Checkpoint):
    """Saves ``last.ckpt`` every half minute, and when training ends.

    A run that is killed loses half a minute at most. Resumed from ``last.ckpt`` it ends with the same bits as an
    uninterrupted run. Lightning's own default saves after validation or at the end of an epoch only. Ctrl-C lets the
    current round end, because in the middle of its end nothing can be saved; pressed again, it stops at once.

    Args:
        folder: Where to save; null for ``checkpoints`` in the folder of the run.
        every_n_seconds: Seconds between two saves, at least 0; 0 saves after every round.
    """

    best_model_path = ""
    """Lightning asks for it where ``ckpt_path`` is ``best``: this callback chooses none."""

    def __init__(self, folder: str | None = None, every_n_seconds: float = 30.0) -> None:
        self._folder = folder
        self.every_n_seconds = every_n_seconds
        require(self, "every_n_seconds", at_least=0.0)
        self._saved_at = 0.0
        self._ended_at: int | None = None
        self._deferral = ExitStack()
        self._presses: Callable[[], int] = int
        self.dirpath: str | None = folder

    @property
    def path(self) -> Path | None:
        """Return the path of the file; None before training starts."""
        return None if self.dirpath is None else Path(self.dirpath) / "last.ckpt"

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Choose the folder, the same in all processes."""
        if self._folder is None:
            chosen = run_folder(trainer) / "checkpoints"
            self.dirpath = str(trainer.strategy.broadcast(str(chosen)))

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock, and hold Ctrl-C back from here on, unless somebody else handles it."""
        self._saved_at = time.monotonic()
        self._ended_at = None
        if trainer.world_size == 1 and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._presses = self._deferral.enter_context(deferred_interrupts())

    def on_train_batch_start(self, *args: Any) -> None:
        """Stop before the round if Ctrl-C was pressed."""
        self._stop_if_pressed()

    def on_validation_batch_start(self, *args: Any) -> None:
        """Stop before a batch of the validation if Ctrl-C was pressed."""
        self._stop_if_pressed()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if a save is due and this round is not validated.

        A run resumed from a save between a round and its validation would skip the validation.
        """
        interval: Any = trainer.val_check_batch  # None where validation goes by the clock
        counts = trainer.global_step, batch_idx + 1
        may_validate = trainer.is_last_batch or (interval is not None and any(n % interval == 0 for n in counts))
        if not may_validate:
            self._save_if_due(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if a save is due."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._save_if_due(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save the end of the training, unless the last round is saved already.

        By now Lightning counts the epoch as done, so that a run resumed from here would leave the rest of it out.
        """
        if self._ended_at != trainer.global_step:
            self._save(trainer)
        self._end_deferral()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save what was trained before the user stopped the run; an unfinished round is repeated on resume.

        Nothing is saved between the end of a round and the end of Lightning's bookkeeping for it; the user is told what
        to go on from then.
        """
        try:
            self._save_where_it_stopped(trainer, pl_module, exception)
        finally:
            self._end_deferral()

    def _stop_if_pressed(self) -> None:
        if self._presses():
            raise KeyboardInterrupt

    def _end_deferral(self) -> None:
        """Let Ctrl-C strike again, unless Lightning ignores it, as it does while it ends an interrupted run."""
        if self._presses is int:
            return
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        self._deferral.close()
        self._presses = int
        if ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def _save_where_it_stopped(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        stopped = isinstance(exception, KeyboardInterrupt | SIGTERMException)
        if not (stopped and trainer.state.fn == "fit" and trainer.world_size == 1 and trainer.global_step):
            return
        batches: Any = trainer.fit_loop.epoch_loop.batch_progress
        if _is_safe_to_save(pl_module) and batches.total.processed == batches.total.completed == trainer.global_step:
            for count in (batches.total, batches.current):
                count.ready = count.started = count.completed  # when to validate is counted by them
            self._save(trainer)
            rank_zero_info(f"Stopped after round {trainer.global_step}. Go on with --ckpt_path={self.path}")
        elif self.path is not None:
            last = (
                f"Go on from the last save with --ckpt_path={self.path}"
                if self.path.is_file()
                else "There is no earlier one"
            )
            rank_zero_info(f"Stopped at the end of a round, before its state could be saved. {last}")

    def _save_if_due(self, trainer: Trainer) -> None:
        due = time.monotonic() - self._saved_at >= self.every_n_seconds
        ends = trainer.should_stop or trainer.global_step == trainer.max_steps
        if trainer.strategy.broadcast(due or ends):
            self._save(trainer)
            self._ended_at = trainer.global_step if ends and not trainer.is_last_batch else None

    def _save(self, trainer: Trainer) -> None:
        path = self.path
        if path is not None and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            trainer.save_checkpoint(path, weights_only=False)
            self._saved_at = time.monotonic()


def _is_safe_to_save(module: LightningModule) -> bool:
    """Return whether all states of a task belong to the same round; those of other modules always do."""
    run: Any = getattr(module, "run", None)
    return bool(getattr(run, "at_round_boundary", True))
