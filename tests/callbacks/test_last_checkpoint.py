"""The last checkpoint holds whole rounds, and runs resume from it bit for bit."""

from __future__ import annotations

import logging
import os
import signal
from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch import Callback

from fedlightning.algorithms import FedAvg, FedMM
from fedlightning.callbacks import History, LastCheckpoint
from fedlightning.oracle import Sequential, Vectorized
from tests.support.small import Line, regression_data, trainer


def test_validation_by_the_clock(tmp_path):
    options = {"val_check_interval": "00:00:10:00", "check_val_every_n_epoch": None, "enable_checkpointing": True}
    run = trainer(tmp_path, callbacks=[LastCheckpoint(str(tmp_path))], max_steps=3, **options)
    run.fit(Line(), regression_data())
    assert run.global_step == 3


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


@pytest.mark.parametrize("stop", [1, 7, 10, 13])
def test_a_run_that_ended_within_an_epoch_goes_on_in_it(stop, tmp_path):
    def fit(ckpt_path=None, **until):
        torch.manual_seed(0)
        callbacks = [LastCheckpoint(str(tmp_path))]
        run = trainer(tmp_path, callbacks=callbacks, enable_checkpointing=True, **until)
        run.fit(Line(oracle=Vectorized()), regression_data(rounds_per_epoch=10), ckpt_path=ckpt_path)
        return run, torch.load(tmp_path / "last.ckpt", weights_only=True)

    _, whole = fit(max_steps=-1, max_epochs=2)
    fit(max_steps=stop)
    run, resumed = fit(tmp_path / "last.ckpt", max_steps=-1, max_epochs=2)
    assert run.global_step == 20
    assert run.current_epoch == 2
    assert torch.equal(resumed["federation"]["server"]["z"], whole["federation"]["server"]["z"])


def test_a_save_says_nothing_of_what_it_was_not_told(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        run = trainer(tmp_path, callbacks=[LastCheckpoint(str(tmp_path))], max_steps=1, enable_checkpointing=True)
        run.fit(Line(), regression_data())
        for path in (None, tmp_path / "last.ckpt"):
            run.fit(Line(), regression_data(), ckpt_path=path)
    assert (tmp_path / "last.ckpt").is_file()
    assert not [line for line in caplog.messages if "weights_only" in line]


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
        self.stop("objective", self._trainer is not None)
        return super().objective(batch)

    def on_before_optimizer_step(self, optimizer):
        self.stop("move", True)

    def lr_schedulers(self):
        self.stop("moved", True)
        return super().lr_schedulers()

    def stop(self, here, trained):
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


class Pressed(Interrupted):
    """Ctrl-C is pressed in round 3, once or twice."""

    presses = 1

    def stop(self, here, trained):
        try:
            super().stop(here, trained)
        except KeyboardInterrupt:
            for _ in range(self.presses):
                os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("presses", [1, 2])
@pytest.mark.parametrize("where", ["objective", "move", "moved"])
def test_ctrl_c_lets_the_round_end_and_strikes_the_second_time(where, presses, tmp_path, caplog):
    def fit(task, folder, resume=None):
        last = LastCheckpoint(str(folder), every_n_seconds=1e9)
        trainer(tmp_path, max_steps=6, enable_checkpointing=True, callbacks=[last]).fit(
            task, regression_data(), ckpt_path=resume
        )
        return task

    def made(**values):
        torch.manual_seed(0)
        task = Pressed(FedMM(0.05), oracle=Sequential())
        vars(task).update(values)
        return task

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        whole = fit(made(), tmp_path / "whole")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        caplog.set_level(logging.INFO, "lightning.pytorch.utilities.rank_zero")
        with pytest.raises(SystemExit):
            fit(made(where=where, presses=presses), tmp_path / "stopped")
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, handler)
    torn = presses == 2 and where != "objective"
    said = (
        "Stopped at the end of a round"
        if torn
        else f"Stopped after round {3 if presses == 1 and where != 'moved' else 2}. Go on"
    )
    assert said in caplog.text
    if not torn:
        resumed = fit(made(), tmp_path / "stopped", tmp_path / "stopped" / "last.ckpt")
        for name, value in whole.state_dict().items():
            assert torch.equal(resumed.state_dict()[name], value), name


@pytest.mark.parametrize(
    ("seconds", "says"), [(0, "Go on from the last save with --ckpt_path="), (1e9, "There is no earlier one")]
)
def test_who_stops_a_run_where_nothing_can_be_saved_is_told_what_to_go_on_from(seconds, says, tmp_path, caplog):
    task = Interrupted(FedAvg(0.05), oracle=Sequential())
    task.where = "move"
    last = LastCheckpoint(str(tmp_path), every_n_seconds=seconds)
    run = trainer(tmp_path, max_steps=6, enable_checkpointing=True, callbacks=[last])
    with caplog.at_level(logging.INFO, "lightning.pytorch.utilities.rank_zero"), pytest.raises(SystemExit):
        run.fit(task, regression_data())
    (said,) = [each for each in caplog.messages if each.startswith("Stopped at the end of a round")]
    assert says in said
    assert (tmp_path / "last.ckpt").is_file() == (seconds == 0)
