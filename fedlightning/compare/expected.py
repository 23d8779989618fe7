"""The metric of a comparison, which a run must log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning.pytorch import Callback, Trainer

from fedlightning.callbacks import History
from fedlightning.callbacks.history import TRAFFIC, is_metric
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.misspelt import did_you_mean

_COLUMNS = TRAFFIC | {"round", "seconds"}
"""Columns that a curve may be drawn of, and that no comparison is about."""


class ExpectedMetric(Callback):
    """Ends a run that does not log the metric of its comparison, as early as the names can be known.

    Lightning's sanity check tells what validation logs, and the first round what rounds log. Where there is no such
    check, or it shows only some names because there are several data loaders, the first validation tells.
    """

    def __init__(self, metric: str, history: History) -> None:
        """Look for a metric.

        Args:
            metric: Its name.
            history: Records what is logged; its callback comes before this one.
        """
        self._metric = metric
        self._history = history
        self._of_check: frozenset[str] | None = None

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Look at the names of a validation.

        Raises:
            ValueError: If the metric is not among them.
        """
        if not trainer.sanity_checking:
            row = self._history.rows[0]
            if self._metric not in row:
                raise self._refusal(row)
        elif not isinstance(trainer.val_dataloaders, list) or len(trainer.val_dataloaders) == 1:
            self._of_check = frozenset(trainer.callback_metrics)

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        """Look at the names of the sanity check and of the first round after it.

        Raises:
            ValueError: If the metric is not among them, and is none that is computed from one of them.
        """
        of_check, self._of_check = self._of_check, None
        if of_check is None:
            return
        of_round = {*pl_module.round_metrics, *(name for name in trainer.callback_metrics if name[:6] != "train_")}
        known = {name for name in of_check | of_round if is_metric(name)} | _COLUMNS
        derived = any(self._metric.startswith(f"{name}_") for name in of_check)  # over clients, who are few there
        if self._metric not in known and not derived:
            raise self._refusal(
                known, " If validation logs it, but not in Lightning's sanity check: trainer.num_sanity_val_steps=0."
            )

    def _refusal(self, names: Iterable[str], remedy: str = "") -> InvalidValueError:
        known = sorted(names)
        hint = did_you_mean(self._metric, known)
        logged = ", ".join(name for name in known if name not in _COLUMNS)
        return InvalidValueError(
            f"metric={self._metric!r} is not logged by validation.{hint} Logged: {logged}.{remedy}"
        )
