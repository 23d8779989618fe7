"""The callback that writes pictures of tasks to loggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from fedlightning.callbacks.loggers import picture_writer
from fedlightning.core.errors import MissingPackageError
from fedlightning.core.validation import require


class LogPictures(Callback):
    """Writes the figures that a task's ``pictures()`` returns, by name, to the loggers after validation.

    TensorBoard, W&B, MLflow and Comet show them; a ``CSVLogger`` gets files in ``pictures/`` beside its table. Of
    other loggers a line says that they get none.

    Args:
        every_n_validations: Pictures are written after the first validation and every n-th from there, at least 1.
    """

    def __init__(self, every_n_validations: int = 5) -> None:
        self.every_n_validations = every_n_validations
        require(self, "every_n_validations", at_least=1, whole=True)
        self._validations = 0
        self._said = False

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the pictures and write them, if they are due."""
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        due = self._validations % self.every_n_validations == 0
        self._validations += 1
        pictures: Any = getattr(pl_module, "pictures", None)
        if pictures is None or not due:
            return
        writers = [(logger, picture_writer(logger)) for logger in trainer.loggers]
        self._say_who_gets_none([type(logger).__name__ for logger, write in writers if write is None])
        taking = [write for _, write in writers if write is not None]
        for name, figure in self._drawn(pictures).items() if taking else ():
            for write in taking:
                write(name, figure, trainer.global_step)

    def _say_who_gets_none(self, loggers: list[str]) -> None:
        if loggers and not self._said:
            self._said = True
            rank_zero_info(
                f"{', '.join(loggers)} gets no pictures: fedlightning.callbacks.loggers.picture_writer knows no way. "
                "Register one there, or add a logger that takes pictures, such as TensorBoardLogger."
            )

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
