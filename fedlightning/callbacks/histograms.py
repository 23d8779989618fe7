"""Histograms over clients in TensorBoard."""

from __future__ import annotations

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor

LARGEST = 1e20
"""Bins of TensorBoard end here; it refuses to draw an empty histogram."""


def log_histogram(trainer: Trainer, name: str, values: Tensor) -> None:
    """Add a histogram of the values to every TensorBoard logger, at the present round.

    Values that are not finite, or too large for TensorBoard, are left out.

    Args:
        trainer: Has the loggers.
        name: Tag of the histogram.
        values: One value a client, ``[S]``.
    """
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger) and len(known := values[values.abs() < LARGEST]):
            logger.experiment.add_histogram(name, known, global_step=trainer.global_step)
