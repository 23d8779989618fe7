"""Every round is a line of the log, and the last one is kept in a file."""

from __future__ import annotations

import json
import re
import time

import pytest

from fedlightning.callbacks import LastCheckpoint, RoundReport
from fedlightning.core.errors import InvalidValueError
from tests.support.small import Line, regression_data, trainer


def fit(folder, *callbacks, rounds=4, ckpt_path=None, **options):
    run = trainer(folder, callbacks=list(callbacks), max_steps=rounds, **options)
    run.fit(Line(), regression_data(), ckpt_path=ckpt_path)
    return run


def test_rounds_are_told_with_their_metrics(tmp_path, capsys):
    run = fit(tmp_path, RoundReport())
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Round")]
    assert [re.match(r"Round (\d) of 4: ", line)[1] for line in lines] == ["1", "2", "3", "4"]
    loss = float(run.callback_metrics["train_loss"])
    assert f"train_loss={loss:.4g}" in lines[-1]
    assert re.search(r" \(\d+\.\d s\)$", lines[-1])
    assert "upload" not in lines[-1]


def test_the_last_round_is_in_a_file(tmp_path):
    run = fit(tmp_path, RoundReport())
    kept = json.loads((tmp_path / "progress.json").read_text())
    assert (kept["round"], kept["rounds"]) == (4, 4)
    assert kept["metrics"]["train_loss"] == float(run.callback_metrics["train_loss"])
    assert 0 <= time.time() - kept["time"] < 60
    assert not list(tmp_path.glob("*.part"))


def test_rounds_between_are_left_out(tmp_path, capsys):
    fit(tmp_path / "run", RoundReport(every_n_rounds=3, folder=str(tmp_path / "there")), rounds=7)
    assert re.findall(r"^Round (\d) of 7", capsys.readouterr().out, re.MULTILINE) == ["3", "6"]
    assert json.loads((tmp_path / "there" / "progress.json").read_text())["round"] == 6


def test_validation_is_told_apart(tmp_path, capsys):
    run = fit(tmp_path, RoundReport(), val_check_interval=2, check_val_every_n_epoch=None)
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("Round", "Validation"))]
    assert [line.partition(":")[0] for line in told] == [
        "Round 1 of 4",
        "Round 2 of 4",
        "Validation after round 2",
        "Round 3 of 4",
        "Round 4 of 4",
        "Validation after round 4",
    ]
    assert told[-1] == f"Validation after round 4: val_loss={float(run.callback_metrics['val_loss']):.4g}"
    assert all("val_loss" not in line for line in told if line.startswith("Round"))


def test_a_resumed_run_says_where_it_goes_on(tmp_path, capsys):
    options = {"enable_checkpointing": True}
    fit(tmp_path, RoundReport(), LastCheckpoint(str(tmp_path)), rounds=2, **options)
    assert "Goes on" not in capsys.readouterr().out
    fit(tmp_path, RoundReport(), LastCheckpoint(str(tmp_path)), ckpt_path=tmp_path / "last.ckpt", **options)
    assert capsys.readouterr().out.splitlines()[0].startswith("Goes on after round 2")


def test_rounds_between_two_lines_are_at_least_one():
    with pytest.raises(InvalidValueError, match="every_n_rounds"):
        RoundReport(every_n_rounds=0)
