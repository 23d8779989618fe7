"""A row for every validation, and for the round that ends a run."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger

from fedlightning.callbacks import History
from tests.support.small import Line, regression_data, trainer
from tests.support.tensorboard import events


def test_a_short_fit_logs_its_last_round(tmp_path):
    for options in ({"max_steps": 3}, {"max_steps": -1, "max_epochs": 1}):
        logger = TensorBoardLogger(tmp_path, name="", version=str(options), default_hp_metric=False)
        trainer(tmp_path, logger=logger, log_every_n_steps=50, **options).fit(Line(), regression_data())
        rows = events(logger.log_dir).Scalars("train_loss")
        assert [row.step for row in rows] == [3 if options["max_steps"] == 3 else 5]


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


def test_a_metric_that_a_validation_does_not_log_is_no_part_of_its_row():
    class Sometimes(Line):
        def on_validation_epoch_end(self):
            if self.trainer.global_step in (3, 9):
                self.log("stamp", float(self.trainer.global_step))

    history = History()
    options = {"max_steps": 12, "val_check_interval": 3, "check_val_every_n_epoch": None}
    trainer(callbacks=[history], **options).fit(Sometimes(), regression_data())
    assert [row.get("stamp") for row in history.rows] == [3, None, 9, None]
    for name in ("val_loss", "drift", "clients"):
        assert all(name in row for row in history.rows)


def test_seconds_are_those_of_rounds(monkeypatch):
    """Neither what comes before the first round nor validation counts; a checkpoint has those up to its moment."""
    now, state = [0.0], SimpleNamespace(fn="fit")
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    run = SimpleNamespace(sanity_checking=True, state=state, callback_metrics={}, global_step=0)
    history = History()

    def at(second, hook):
        now[0] = second
        hook(run, None)

    at(5.0, history.on_validation_start)
    at(6.0, history.on_validation_end)
    run.sanity_checking = False
    at(10.0, history.on_train_start)
    at(13.0, history.on_validation_start)
    at(14.0, history.on_validation_end)
    now[0] = 16.0
    resumed = History()
    resumed.load_state_dict(history.state_dict())
    at(17.0, history.on_train_end)
    state.fn = "validate"
    at(20.0, history.on_validation_start)
    at(21.0, history.on_validation_end)
    assert [row["seconds"] for row in history.rows] == [3.0, 6.0]
    state.fn = "fit"
    at(22.0, history.on_train_start)
    now[0] = 23.0
    history.on_exception(run, None, KeyboardInterrupt())
    now[0] = 29.0  # a pause
    assert history.state_dict()["seconds"] == 7.0
    state.fn = "fit"
    at(30.0, resumed.on_train_start)
    at(31.0, resumed.on_validation_start)
    at(32.0, resumed.on_validation_end)
    assert resumed.rows[-1]["seconds"] == 3.0 + 2.0 + 1.0


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
