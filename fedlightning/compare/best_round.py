"""The best round of a run: kept to be tested, and chosen on data that the comparison names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from fedlightning.callbacks import History
from fedlightning.compare.arguments import Report
from fedlightning.compare.goal import Goal
from fedlightning.core.errors import InvalidValueError


class BestRound(Callback):
    """Saves a checkpoint after every validation that is better than all before it."""

    def __init__(self, goal: Goal, history: History, path: Path) -> None:
        """Follow a metric.

        Args:
            goal: The metric, and the direction that is better.
            history: Records what is logged; its callback comes before this one.
            path: Where the checkpoint lies.
        """
        self._goal = goal
        self._history = history
        self._path = path

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Save a checkpoint if this validation is the best one."""
        rows = self._history.rows
        if not trainer.sanity_checking and self._goal.best_row(rows) is rows[-1]:
            trainer.save_checkpoint(self._path)


def require_choice(report: Report, validates_on_test: bool) -> None:
    """Make sure that the best round is chosen on the data that the comparison says.

    Args:
        report: The round that is reported.
        validates_on_test: Whether the validation data of the runs are the test data.

    Raises:
        ValueError: If it would be chosen on others.
    """
    if report == "best" and validates_on_test:
        raise InvalidValueError(
            "--report best: the validation data are the test data, so that the best round would be chosen on "
            "test data. Give --report last, best_on_test to say so, or data with a val_share above 0."
        )
    if report == "best_on_test" and not validates_on_test:
        raise InvalidValueError(
            "--report best_on_test: the data have validation data of their own, on which the best round would be "
            "chosen. Give --report best, or data that validate on their test data, as those with a val_share of 0 do."
        )
