import logging
from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_info
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedlightning.algorithms import FedAvg, FedMM
from fedlightning.callbacks import History, LastCheckpoint, LogPictures, RoundProgressBar
from fedlightning.callbacks.progress import rounds_in_total
from fedlightning.oracle import Sequential, Vectorized
from tests.support.small import Line, regression_data, trainer


class Drawing(Line):
    def pictures(self):
        figure = Figure(figsize=(1, 1))
        figure.subplots().plot([0, 1])
        return {"line": figure}


def events(folder):
    board = EventAccumulator(str(folder), size_guidance={"images": 0, "scalars": 0})
    board.Reload()
    return board


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


def test_progress_bar_counts_rounds(capsys):
    trainer(enable_progress_bar=True, callbacks=[RoundProgressBar()], max_steps=7).fit(Line(), regression_data())
    shown = capsys.readouterr().err
    assert "Round: 100%" in shown
    assert "7/7" in shown
    assert "val_loss" not in shown  # not logged to the bar


def test_messages_stand_above_the_progress_bar(capsys):
    class Talks(Line):
        def on_train_batch_end(self, *_):
            rank_zero_info("something to say")

    handler = logging.StreamHandler()  # Lightning's own has the stream that pytest took away
    logger = logging.getLogger("lightning.pytorch")
    logger.addHandler(handler)
    try:
        trainer(enable_progress_bar=True, callbacks=[RoundProgressBar()], max_steps=2).fit(Talks(), regression_data())
    finally:
        assert handler in logger.handlers
        logger.removeHandler(handler)
    before = capsys.readouterr().err.split("something to say\n")[:-1]
    assert len(before) == 2
    assert all(text[-1] in "\r\n" for text in before)


def test_a_short_fit_logs_its_last_round(tmp_path):
    for options in ({"max_steps": 3}, {"max_steps": -1, "max_epochs": 1}):
        logger = TensorBoardLogger(tmp_path, name="", version=str(options), default_hp_metric=False)
        trainer(tmp_path, logger=logger, log_every_n_steps=50, **options).fit(Line(), regression_data())
        rows = events(logger.log_dir).Scalars("train_loss")
        assert [row.step for row in rows] == [3 if options["max_steps"] == 3 else 5]


def test_rounds_in_total():
    seen = []

    class Spy(Line):
        def on_train_start(self):
            super().on_train_start()
            seen.append(rounds_in_total(self.trainer))

    trainer(max_steps=7).fit(Spy(), regression_data())
    trainer(max_steps=-1, max_epochs=3).fit(Spy(), regression_data())
    trainer(max_steps=7, max_epochs=1).fit(Spy(), regression_data())
    assert seen == [7, 15, 5]


def test_a_round_that_ends_a_run_early_has_its_own_row():
    class Stop(Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = trainer.global_step == 4

    history, drifts = History(), []

    class Note(Callback):
        def on_train_batch_end(self, trainer, pl_module, *_):
            drifts.append(float(pl_module.round_metrics["drift"]))

    run = trainer(callbacks=[history, Note(), Stop()], max_steps=9, val_check_interval=3, check_val_every_n_epoch=None)
    run.fit(Line(), regression_data())
    assert [row["round"] for row in history.rows] == [3, 4]
    assert [row["drift"] for row in history.rows] == drifts[2:4]


def test_validation_by_the_clock(tmp_path):
    options = {"val_check_interval": "00:00:10:00", "check_val_every_n_epoch": None, "enable_checkpointing": True}
    run = trainer(tmp_path, callbacks=[LastCheckpoint(str(tmp_path))], max_steps=3, **options)
    run.fit(Line(), regression_data())
    assert run.global_step == 3


def test_history_survives_a_resume(tmp_path):
    def fit(rounds, ckpt_path=None):
        torch.manual_seed(0)
        history = History()
        callbacks = [history, ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=4, save_top_k=-1)]
        run = trainer(
            tmp_path,
            enable_checkpointing=True,
            callbacks=callbacks,
            max_steps=rounds,
            val_check_interval=3,
            check_val_every_n_epoch=None,
        )
        run.fit(Line(), regression_data(), ckpt_path=ckpt_path)
        return history

    whole = fit(9)
    resumed = fit(9, tmp_path / "step=4.ckpt")
    strip = lambda rows: [{k: v for k, v in row.items() if k != "seconds"} for row in rows]  # noqa: E731
    assert strip(resumed.rows) == strip(whole.rows)
    assert [row["round"] for row in whole.rows] == [3, 6, 9]
    d = 41
    assert [row["upload"] for row in whole.rows] == [3 * 4 * d, 6 * 4 * d, 9 * 4 * d]
    assert {row["round_download_bytes"] for row in whole.rows} == {4 * d * 4}
    assert len({row["drift"] for row in whole.rows}) == 3  # that of the round before each validation
    assert set(whole.rows[0]) == {
        "round",
        "drift",
        "train_loss",
        "train_rmse",
        "clients",
        "left_out",
        "upload",
        "download",
        "upload_bytes",
        "download_bytes",
        "round_upload",
        "round_download",
        "round_upload_bytes",
        "round_download_bytes",
        "seconds",
        "val_loss",
    }
    whole.write(tmp_path / "history.csv")
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 4


@pytest.mark.parametrize("stop", range(1, 9))
def test_resume_from_the_last_checkpoint_of_any_round_is_bitwise(stop, tmp_path):
    options = {"val_check_interval": 3, "check_val_every_n_epoch": None, "enable_checkpointing": True}

    def fit(rounds, folder, ckpt_path=None, kill_at=None):
        torch.manual_seed(0)
        history = History()
        callbacks = [history, LastCheckpoint(str(folder), every_n_seconds=0.0), Kill(kill_at)]
        run = trainer(tmp_path, callbacks=callbacks, max_steps=rounds, **options)
        with pytest.raises(Killed) if kill_at else nullcontext():
            run.fit(Line(FedMM(0.05), oracle=Vectorized()), regression_data(), ckpt_path=ckpt_path)
        return history, torch.load(folder / "last.ckpt", weights_only=True)

    history, whole = fit(10, tmp_path / "whole")
    fit(10, tmp_path / "part", kill_at=stop + 1)
    resumed_history, resumed = fit(10, tmp_path / "part", ckpt_path=tmp_path / "part" / "last.ckpt")
    assert torch.equal(resumed["federation"]["server"]["z"], whole["federation"]["server"]["z"])
    for name, rows in whole["federation"]["clients"]["rows"].items():
        assert torch.equal(resumed["federation"]["clients"]["rows"][name], rows)
    assert [row["round"] for row in resumed_history.rows] == [row["round"] for row in history.rows] == [3, 6, 9]
    assert [row["val_loss"] for row in resumed_history.rows] == [row["val_loss"] for row in history.rows]


def test_the_end_of_a_run_can_be_extended(tmp_path):
    def fit(rounds, ckpt_path=None):
        torch.manual_seed(0)
        callbacks = [LastCheckpoint(str(tmp_path))]
        run = trainer(tmp_path, callbacks=callbacks, max_steps=rounds, enable_checkpointing=True)
        run.fit(Line(FedMM(0.05), oracle=Vectorized()), regression_data(), ckpt_path=ckpt_path)
        return torch.load(tmp_path / "last.ckpt", weights_only=True)["federation"]["server"]["z"]

    whole = fit(12)
    fit(7)
    assert torch.equal(fit(12, tmp_path / "last.ckpt"), whole)


class Killed(Exception):
    pass


class Kill(Callback):
    """Stops in the middle of a round."""

    def __init__(self, at):
        self.at = at

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if self.at is not None and trainer.global_step == self.at:
            raise Killed


class Interrupted(Line):
    """Stopped by the user once, in round 3: before, within or after the change of its states."""

    where = ""

    def objective(self, batch):
        self._stop("objective", self._trainer is not None)
        return super().objective(batch)

    def on_before_optimizer_step(self, optimizer):
        self._stop("move", True)

    def log(self, name, *args, **kwargs):
        self._stop("moved", name == "step")
        super().log(name, *args, **kwargs)

    def _stop(self, here, trained):
        if trained and here == self.where and self.trainer.global_step >= 2 and self.trainer.state.fn == "fit":
            self.where = ""
            raise KeyboardInterrupt


@pytest.mark.parametrize(("where", "saved"), [("objective", True), ("move", False), ("moved", False)])
@pytest.mark.parametrize("algorithm", [FedAvg(0.05), FedMM(0.05)])
def test_interrupts_save_whole_rounds_only(where, saved, algorithm, tmp_path):
    def fit(folder, stop="", resume=None):
        torch.manual_seed(0)
        task = Interrupted(algorithm, oracle=Sequential())
        task.where = stop
        run = trainer(
            tmp_path,
            max_steps=6,
            enable_checkpointing=True,
            callbacks=[LastCheckpoint(str(folder), every_n_seconds=1e9)],
        )
        try:
            run.fit(task, regression_data(), ckpt_path=resume)
        except SystemExit:
            assert stop
        return task, folder / "last.ckpt"

    whole, _ = fit(tmp_path / "whole")
    _, last = fit(tmp_path / "stopped", where)
    assert last.is_file() == saved
    if saved:
        resumed, _ = fit(tmp_path / "stopped", resume=last)
        for name, value in whole.state_dict().items():
            assert torch.equal(resumed.state_dict()[name], value), name
