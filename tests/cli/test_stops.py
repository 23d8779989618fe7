"""A command that is stopped ends quietly, with the status of the signal and with its checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from fedlightning.cli import main
from fedlightning.cli.stops import interrupts_kept, signal_behind, status_of_signals
from tests.support.commands import SMALL, of
from tests.support.paths import ROOT

STOPPED = """
import os, signal
from lightning.pytorch import Callback

class Stopped(Callback):
    def __init__(self, number: int):
        self.number = number

    def on_train_batch_start(self, trainer, *args):
        if trainer.global_step == 2:
            os.kill(os.getpid(), self.number)

class Left(Callback):
    def on_train_batch_start(self, *args):
        raise SystemExit(3)
"""
FIT = ["fit", *of("quadratic_saddle", "fed_mm"), *SMALL[2:], "--trainer.max_steps=9"]


@pytest.fixture(autouse=True)
def _stopping_callbacks(_elsewhere, monkeypatch):
    Path("stopping_callbacks.py").write_text(STOPPED)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "stopping_callbacks", raising=False)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():  # Lightning leaves Ctrl-C ignored
        signal.signal(number, handler)


@pytest.mark.filterwarnings("ignore:.*KeyboardInterrupt")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_fit_that_is_stopped_ends_with_the_status_of_the_signal_and_a_checkpoint(number, status):
    stopped = ["--trainer.callbacks=stopping_callbacks.Stopped", f"--trainer.callbacks.number={int(number)}"]
    with pytest.raises(SystemExit) as exit_:
        main([*FIT, *stopped])
    assert exit_.value.code == status
    (checkpoint,) = Path("runs").rglob("last.ckpt")
    assert torch.load(checkpoint, weights_only=True)["global_step"] in (2, 3)


def test_other_statuses_are_left_alone():
    with pytest.raises(SystemExit) as exit_:
        main([*FIT, "--trainer.callbacks=stopping_callbacks.Left"])
    assert exit_.value.code == 3
    assert signal_behind(exit_.value) is None
    with pytest.raises(SystemExit) as exit_, status_of_signals():
        sys.exit("a sentence")
    assert exit_.value.code == "a sentence"


def test_a_comparison_ends_with_the_status_of_sigterm_and_goes_on(capsys):
    small = [argument.removeprefix("--") for argument in FIT if argument.startswith("--trainer.")]
    base, algorithm = (argument.removeprefix("--config=") for argument in of("quadratic_saddle", "fed_mm"))
    command = ["compare", "--base", base, "--algorithms", algorithm, "--metric=distance", "--output=out", "--set"]
    stopped = ["trainer.callbacks=stopping_callbacks.Stopped", f"trainer.callbacks.number={int(signal.SIGTERM)}"]
    with pytest.raises(SystemExit) as exit_:
        main([*command, *small, *stopped])
    assert exit_.value.code == 143
    assert capsys.readouterr().err.splitlines()[-1] == (
        "fedlightning compare: interrupted. The same command goes on where it stopped."
    )
    assert not list(Path("out").rglob("done.json"))
    main([*command, *small, *stopped])
    assert Path("out/table.md").is_file()


@pytest.mark.parametrize("seconds", [0.5, 1.5])
def test_an_interrupt_in_the_first_seconds_takes_a_line(seconds):
    process = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); from fedlightning.cli import main; main()", *FIT],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.strip() in ("fedlightning: interrupted.", "Seed set to 0\n\nfedlightning: interrupted.")


def test_an_interrupt_in_parsing_takes_a_line_and_debugging_shows_it_all(capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedlightning.cli.early.check", interrupted)
    with pytest.raises(SystemExit) as exit_:
        main(["fit"])
    assert exit_.value.code == 130
    assert capsys.readouterr().err == "\nfedlightning: interrupted.\n"
    monkeypatch.setenv("FEDLIGHTNING_DEBUG", "1")
    with pytest.raises(KeyboardInterrupt):
        main(["fit"])


def press():
    os.kill(os.getpid(), signal.SIGINT)


def replaced():
    try:
        press()
    except KeyboardInterrupt:
        raise ImportError("cannot load module more than once per process") from None


def dropped():
    with suppress(KeyboardInterrupt):
        press()


class Destroyed:
    def __del__(self):
        press()


def met_a_destructor():
    Destroyed()


@pytest.mark.parametrize("code", [press, replaced, dropped, met_a_destructor])
def test_an_interrupt_stays_one_whatever_code_makes_of_it(code, capsys, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interrupts_kept():
        code()
    assert signal.getsignal(signal.SIGINT) is before
    assert sys.unraisablehook is sys.__unraisablehook__
    assert capsys.readouterr().err == ""


def test_without_an_interrupt_errors_pass_and_other_threads_and_handlers_go_without():
    with pytest.raises(ImportError), interrupts_kept():
        raise ImportError("missing")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts_kept():
        press()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ended = []

    def elsewhere():
        with interrupts_kept():
            ended.append(True)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert ended
