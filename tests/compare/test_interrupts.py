"""Ctrl-C is remembered, and obeyed where runs stop; what else ends runs ends them all."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fedlightning.cli import main
from fedlightning.compare import compare
from tests.support.comparisons import SADDLE, SMALL, arguments, command_line, table
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

SLOW = '''
import os, time
from lightning.pytorch import Callback

class Slow(Callback):
    def on_train_batch_start(self, *args):
        time.sleep(float(os.environ.get("SECONDS_A_ROUND", 0)))

class Long(Callback):
    def on_train_batch_start(self, *args):
        open(f"begun-{os.getpid()}", "w").close()
        time.sleep(100)

class Killed(Callback):
    def on_train_batch_start(self, *args):
        os._exit(3)

class Pressed(Callback):
    """Ctrl-C in the middle of something, once."""

    when = None

    def _press(self, hook):
        import signal
        if Pressed.when == hook:
            Pressed.when = None
            os.kill(os.getpid(), signal.SIGINT)

    def on_train_batch_end(self, trainer, *args):
        if trainer.global_step == 3:
            self._press("round")

    def on_validation_start(self, trainer, *args):
        if trainer.global_step == 4:
            self._press("validation")

        if trainer.global_step == trainer.max_steps:
            self._press("last round")

    def on_test_start(self, *args):
        self._press("test")

class Broken(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == 3:
            raise ValueError("a fault of the user's own")
'''


@pytest.fixture
def slow(tmp_path, monkeypatch):
    (tmp_path / "slow_rounds.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}{os.pathsep}{ROOT}")
    monkeypatch.syspath_prepend(tmp_path)
    before = signal.getsignal(signal.SIGINT)
    yield
    sys.modules.pop("slow_rounds", None)  # whose file is gone by the next test
    signal.signal(signal.SIGINT, before)  # Lightning leaves Ctrl-C ignored


def _alive(group):
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _started(jobs, **options):
    """A comparison in a session of its own, some rounds on."""
    process = subprocess.Popen(
        command_line(jobs, "out", **options),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        env={**os.environ, "SECONDS_A_ROUND": "0.4"},
    )  # fmt: skip
    while not list(Path().glob("out/A/seed-0/events*")):
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.3)
    return process


def _wait_until_nobody_is_left(process):
    deadline = time.monotonic() + 30
    while _alive(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_command_that_is_killed_leaves_no_processes(slow):
    process = _started(2, seeds=["0"])  # one process beside the command
    process.kill()
    process.communicate(timeout=60)
    _wait_until_nobody_is_left(process)
    assert not list(Path().rglob("done.json"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The table of a comparison that nobody interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "slow_rounds.py").write_text(SLOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.delitem(sys.modules, "slow_rounds", raising=False)
        main(command_line(1, folder / "out")[3:])
        patch.delitem(sys.modules, "slow_rounds")
    return table(folder / "out")


LAST_LINE = "fedlightning compare: interrupted. The same command goes on where it stopped."


def assert_stopped(process):
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == LAST_LINE
    assert "Traceback" not in errors
    _wait_until_nobody_is_left(process)


def test_an_interrupt_stops_all_and_the_same_command_goes_on(slow, whole):
    process = _started(2)
    os.killpg(process.pid, signal.SIGINT)
    assert_stopped(process)
    assert_goes_on(whole)


def test_an_interrupt_of_the_command_alone_stops_the_others(slow):
    process = _started(2, seeds=["0"])  # one process beside the command
    os.kill(process.pid, signal.SIGINT)
    assert_stopped(process)
    assert not list(Path().rglob("done.json"))


def test_an_interrupt_stops_one_run_after_the_other_and_the_same_command_goes_on(slow, whole, capfd):
    """In this process, since no other belongs to it."""
    importlib.import_module("slow_rounds").Pressed.when = "round"
    with pytest.raises(SystemExit) as exit_:
        main([*command_line(1, "out")[3:-1], "trainer.callbacks=slow_rounds.Pressed"])
    assert exit_.value.code == 130
    assert capfd.readouterr().err.splitlines()[-1] == LAST_LINE
    assert_goes_on(whole)


def assert_goes_on(whole):
    """Of an interrupted comparison no run is finished, those that waited are not begun, and nothing is lost."""
    assert not list(Path().rglob("done.json"))
    assert not Path("out/A/seed-2").exists()
    main(command_line(1, "out")[3:])
    ours = table("out")
    for row in ours:
        del row["seconds"]
    assert ours == [{key: value for key, value in row.items() if key != "seconds"} for row in whole]


@pytest.mark.parametrize("moment", ["round", "validation", "test"])
def test_an_interrupt_at_any_moment_ends_the_command_and_loses_nothing(moment, slow):
    options = {"algorithms": [f"A={SADDLE / 'fed_mm.yaml'}"], "test": True}
    options["set"] = [*SMALL, "trainer.callbacks=slow_rounds.Pressed"]
    compare(**arguments(**options, output="whole"))
    importlib.import_module("slow_rounds").Pressed.when = moment
    with pytest.raises(KeyboardInterrupt):
        compare(**arguments(**options))
    assert not Path("out/A/seed-0/done.json").exists()
    compare(**arguments(**options))
    ours, theirs = (table(folder) for folder in ("out", "whole"))
    for row in (*ours, *theirs):
        del row["seconds"]
    assert ours == theirs


def test_an_interrupt_in_the_last_round_of_a_search_begins_nothing_new(slow):
    options = {"algorithms": [f"A={SADDLE / 'fed_mm.yaml'}"], "grid": ["lr=0.05"], "seeds": [0, 1]}
    importlib.import_module("slow_rounds").Pressed.when = "last round"
    with pytest.raises(KeyboardInterrupt):
        compare(**arguments(**options, set=[*SMALL, "trainer.callbacks=slow_rounds.Pressed"]))
    assert len(list(Path("out").rglob("done.json"))) == 1
    assert not Path("out/A").exists()


def test_the_second_interrupt_does_not_wait_for_the_round(slow):
    command = [*command_line(2, "out", seeds=["0"])[:-1], "trainer.callbacks=slow_rounds.Long"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    while not list(Path().glob("begun-*")):
        assert process.poll() is None
        time.sleep(0.05)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(1)
    assert_stopped(process)


def test_the_second_interrupt_does_not_wait_for_the_round_of_a_single_run(slow, capfd):
    ended = threading.Event()

    def press_twice():
        while not list(Path().glob("begun-*")):
            if ended.wait(0.05):
                return
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)

    fingers = threading.Thread(target=press_twice)
    fingers.start()
    began = time.monotonic()
    try:
        with pytest.raises(SystemExit) as exit_:
            main([*command_line(1, "out")[3:-1], "trainer.callbacks=slow_rounds.Long"])
    finally:
        ended.set()
        fingers.join()
    assert exit_.value.code == 130
    assert time.monotonic() - began < 60  # of a round of 100
    assert capfd.readouterr().err.splitlines()[-1] == LAST_LINE


def test_a_fault_in_one_run_stops_the_others_and_keeps_its_own_name(slow):
    broken = Path("broken.yaml")
    broken.write_text((SADDLE / "fed_avg.yaml").read_text() + "\ntrainer: {callbacks: slow_rounds.Broken}\n")
    both = [f"A={SADDLE / 'fed_mm.yaml'}", "B=broken.yaml"]
    base = [str(SADDLE / "base.yaml")]
    values = ["trainer.max_steps=100000", *SMALL[1:]]
    began = time.monotonic()
    with pytest.raises(ValueError, match="a fault of the user's own"):
        compare(**arguments(base=base, algorithms=both, set=values, jobs=2))
    assert time.monotonic() - began < 100
    assert Path("out/A/seed-0/fingerprint").exists()
    assert not Path("out/A/seed-0/done.json").exists()


def test_a_killed_process_is_told(slow):
    with pytest.raises(RuntimeError, match=r"A run's process was killed.*--jobs"):
        compare(
            **arguments(
                algorithms=[f"A={SADDLE / 'fed_mm.yaml'}"],
                set=[*SMALL, "trainer.callbacks=slow_rounds.Killed"],
                seeds=[0],
                jobs=2,
            )
        )
