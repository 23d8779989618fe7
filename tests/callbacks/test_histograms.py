"""Histograms over clients."""

from __future__ import annotations

from lightning.pytorch.loggers import TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support.evaluated import CLIENTS, digits, fitted, task


def test_histograms_over_clients_are_in_tensorboard(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="", default_hp_metric=False)
    fitted(task(), digits(), logger=logger)
    logger.finalize("success")
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    (event,) = board.Histograms("val_accuracy_clients")
    assert event.step == 4
    assert event.histogram_value.num == CLIENTS
    assert {"val_accuracy", "val_accuracy_std", "val_accuracy_worst"} <= set(board.Tags()["scalars"])
