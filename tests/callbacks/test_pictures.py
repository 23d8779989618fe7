"""Pictures of a task, in TensorBoard beside its scalars."""

from __future__ import annotations

import pytest
from lightning.pytorch.loggers import TensorBoardLogger
from matplotlib.figure import Figure

from fedlightning.algorithms import FedMM
from fedlightning.callbacks import LogPictures
from fedlightning.core.errors import MissingPackageError
from tests.support.small import Line, regression_data, trainer
from tests.support.tensorboard import events


class Drawing(Line):
    def pictures(self):
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot([0, 1])
        return {"line": figure}


def test_tensorboard_shows_scalars_over_rounds_pictures_and_hyper_parameters(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="", default_hp_metric=False)
    fit = trainer(
        tmp_path,
        logger=logger,
        callbacks=[LogPictures(2)],
        max_steps=12,
        log_every_n_steps=1,
        val_check_interval=2,
        check_val_every_n_epoch=None,
    )
    fit.fit(Drawing(FedMM(0.05)), regression_data())
    board = events(tmp_path)
    assert [event.step for event in board.Scalars("train_loss")] == list(range(1, 13))
    assert [event.step for event in board.Scalars("val_loss")] == [2, 4, 6, 8, 10, 12]
    traffic = {
        f"{each}{way}{unit}" for each in ("", "round_") for way in ("upload", "download") for unit in ("", "_bytes")
    }
    assert {"drift", "dual_norm", *traffic, "round_time"} <= set(board.Tags()["scalars"])
    assert board.Histograms("dual_norm_clients")[-1].histogram_value.num == 4  # every client's own
    assert [event.step for event in board.Images("line")] == [2, 6, 10]
    hparams = (tmp_path / "hparams.yaml").read_text()
    assert "dropout: 0.2" in hparams
    assert "FedMM" in hparams


def test_pictures_need_a_positive_interval():
    with pytest.raises(ValueError, match="every_n_validations=0"):
        LogPictures(0)


def test_a_task_without_pictures_is_fine(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="", default_hp_metric=False)
    trainer(tmp_path, logger=logger, callbacks=[LogPictures()]).fit(Line(), regression_data())
    assert events(tmp_path).Tags()["images"] == []


class WithoutMatplotlib(Line):
    def pictures(self):
        raise MissingPackageError("This needs the package 'matplotlib'.")


def test_a_run_goes_on_where_nothing_can_be_drawn(tmp_path):
    logger = TensorBoardLogger(tmp_path, name="", version="", default_hp_metric=False)
    fit = trainer(tmp_path, logger=logger, callbacks=[LogPictures()], max_steps=2, val_check_interval=1)
    with pytest.warns(UserWarning, match="LogPictures draws no pictures. This needs the package 'matplotlib'."):
        fit.fit(WithoutMatplotlib(), regression_data())
    assert fit.global_step == 2
