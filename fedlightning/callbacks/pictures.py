"""Pictures of tasks in TensorBoard."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from fedlightning.core.validation import require


class LogPictures(Callback):
    """After validation, write what a task's ``pictures()`` returns (names to figures) to TensorBoard.

    Args:
        every_n_validations: Write after every n-th validation, and after the first.
    """

    def __init__(self, every_n_validations: int = 5) -> None:
        self.every_n_validations = every_n_validations
        require(self, "every_n_validations", at_least=1, whole=True)
        self._validations = 0

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw and write."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        due = self._validations % self.every_n_validations == 0
        self._validations += 1
        pictures: Any = getattr(pl_module, "pictures", None)
        boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        if pictures is None or not boards or not due:
            return
        for name, figure in pictures().items():
            for board in boards:
                board.experiment.add_figure(name, figure, global_step=trainer.global_step)

    def state_dict(self) -> dict[str, Any]:
        """How many validations there were."""
        return {"validations": self._validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on counting."""
        self._validations = state_dict["validations"]
