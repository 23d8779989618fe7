"""How histograms over clients and pictures reach loggers of every kind.

What a logger can show is decided by its class alone, so that nothing is imported of loggers that are not in use. A
logger of one's own joins with ``histogram_writer.register(MyLogger)`` and ``picture_writer.register(MyLogger)``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import singledispatch
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CometLogger, CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import DummyLogger
from torch import Tensor

from fedlightning.core.requirements import imported

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

LARGEST = 1e20
"""Bins of TensorBoard end here; it refuses to draw an empty histogram."""

HistogramWriter = Callable[[str, Tensor, int], None]
"""Writes a histogram: its name, one finite value a client ``[S]`` on the CPU, and the round."""

PictureWriter = Callable[[str, "Figure", int], None]
"""Writes a picture: its name, the figure, and the round."""


def log_histogram(trainer: Trainer, name: str, values: Tensor) -> None:
    """Write a histogram of the values to every logger that shows histograms, at the present round.

    Values that are not finite, or too large for TensorBoard, are left out.

    Args:
        trainer: Has the loggers.
        name: Name of the histogram.
        values: One value a client, ``[S]``.
    """
    writers = [writer for logger in trainer.loggers if (writer := histogram_writer(logger)) is not None]
    if not writers:
        return
    values = values.detach().cpu()
    known = values[values.abs() < LARGEST]
    if len(known):
        for write in writers:
            write(name, known, trainer.global_step)


@singledispatch
def histogram_writer(logger: Logger) -> HistogramWriter | None:
    """Return what writes histograms to a logger; None for a logger that shows none, which has the percentiles."""
    return None


@histogram_writer.register(TensorBoardLogger)
def _(logger: TensorBoardLogger) -> HistogramWriter:
    def write(name: str, values: Tensor, step: int) -> None:
        logger.experiment.add_histogram(name, values, global_step=step)

    return write


@histogram_writer.register(WandbLogger)
def _(logger: WandbLogger) -> HistogramWriter:
    def write(name: str, values: Tensor, step: int) -> None:
        import wandb

        histogram: Any = wandb.Histogram(values.tolist())
        logger.log_metrics({name: histogram}, step)

    return write


@histogram_writer.register(CometLogger)
def _(logger: CometLogger) -> HistogramWriter:
    def write(name: str, values: Tensor, step: int) -> None:
        logger.experiment.log_histogram_3d(values.tolist(), name=name, step=step)

    return write


@singledispatch
def picture_writer(logger: Logger) -> PictureWriter | None:
    """Return what writes pictures to a logger; None for a logger that takes none."""
    return None


@picture_writer.register(TensorBoardLogger)
def _(logger: TensorBoardLogger) -> PictureWriter:
    def write(name: str, figure: Figure, step: int) -> None:
        logger.experiment.add_figure(name, figure, global_step=step)

    return write


@picture_writer.register(WandbLogger)
def _(logger: WandbLogger) -> PictureWriter:
    def write(name: str, figure: Figure, step: int) -> None:
        logger.log_image(name, [rendered(figure)], step=step)

    return write


@picture_writer.register(MLFlowLogger)
def _(logger: MLFlowLogger) -> PictureWriter:
    def write(name: str, figure: Figure, step: int) -> None:
        logger.experiment.log_image(logger.run_id, rendered(figure), f"pictures/{_file_name(name, step)}")

    return write


@picture_writer.register(CometLogger)
def _(logger: CometLogger) -> PictureWriter:
    def write(name: str, figure: Figure, step: int) -> None:
        logger.experiment.log_figure(figure_name=name, figure=figure, step=step)

    return write


@picture_writer.register(CSVLogger)
def _(logger: CSVLogger) -> PictureWriter:
    """Write pictures into a folder beside the table."""

    def write(name: str, figure: Figure, step: int) -> None:
        path = Path(logger.log_dir, "pictures", _file_name(name, step))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)

    return write


@picture_writer.register(DummyLogger)
def _(logger: DummyLogger) -> PictureWriter:
    """Let ``fast_dev_run`` draw what a run would draw."""
    return lambda name, figure, step: None


def rendered(figure: Figure) -> Image:
    """Return a figure as an RGB image."""
    buffer = BytesIO()
    figure.savefig(buffer, format="png")
    picture: Image = imported("PIL.Image").open(buffer).convert("RGB")
    return picture


def _file_name(name: str, step: int) -> str:
    """Return the path of a picture: a folder of its name, and a file that sorts by the round."""
    folder = re.sub(r"[^\w.-]+", "_", name)
    return f"{folder}/round-{step:06d}.png"
