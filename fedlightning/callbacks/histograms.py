"""Values of many clients, as TensorBoard shows them."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

LARGEST = 1e20
"""TensorBoard's bins end here; it refuses to draw an empty histogram."""


def log_histogram(trainer: Trainer, name: str, values: Tensor) -> None:
    """Add a histogram to every TensorBoard logger, at the present round, of the values that fit into one.

    Args:
        trainer: Whose loggers.
        name: Tag.
        values: One a client, ``[S]``.
    """
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and len(known := values[values.abs() < LARGEST]):
            logger.experiment.add_histogram(name, known, global_step=trainer.global_step)
