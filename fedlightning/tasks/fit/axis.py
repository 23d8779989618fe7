"""The axis of loggers: the round, where Lightning would count one less."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import LightningModule


def log_axis(task: Any) -> None:
    """Log the round beside what a task logs; at the end of the round :func:`refresh_axis` brings it up to date.

    Lightning keeps values by the hook that logged them, and names checkpoints by the newest hook's: so all have one.
    """
    task.logs_axis = True
    hook, task._current_fx_name = task._current_fx_name, "training_step"
    try:
        LightningModule.log(task, "step", float(task.trainer.global_step), batch_size=1)
    finally:
        task._current_fx_name = hook


def refresh_axis(task: Any) -> None:
    """Bring the axis up to date at the end of a round, if a hook has logged it, because checkpoints are named by it."""
    if task.logs_axis:
        log_axis(task)
