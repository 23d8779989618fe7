"""The callback that writes pictures of tasks to TensorBoard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn

from fedlightning.core.errors import MissingPackageError
from fedlightning.core.validation import require


class LogPictures(Callback):
    """Writes the figures that a task's ``pictures()`` returns, by name, to TensorBoard after validation.

    Args:
        every_n_validations: Pictures are written after the first validation and every n-th from there, at least 1.
    """

    def __init__(self, every_n_validations: int = 5) -> None:
        self.every_n_validations = every_n_validations
        require(self, "every_n_validations", at_least=1, whole=True)
        self._validations = 0

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the pictures and write them, if they are due."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        due = self._validations % self.every_n_validations == 0
        self._validations += 1
        pictures: Any = getattr(pl_module, "pictures", None)
        boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if pictures is None or not boards or not due:
            return
        for name, figure in self._drawn(pictures).items():
            for board in boards:
                board.experiment.add_figure(name, figure, global_step=trainer.global_step)

    @staticmethod
    def _drawn(pictures: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the figures; none, with a warning, where nothing can be drawn because a package is missing."""
        try:
            return pictures()
        except MissingPackageError as missing:
            rank_zero_warn(f"LogPictures draws no pictures. {missing}")
            return {}

    def state_dict(self) -> dict[str, Any]:
        """Return the number of validations so far."""
        return {"validations": self._validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the number of validations from a checkpoint."""
        self._validations = state_dict["validations"]
