"""What ends is started again, later and later while it keeps ending, and all ends with the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import pairwise

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.flower.supervisor import Service, Supervisor
from tests.support.paths import ROOT


def shell(name, line, **options):
    return Service(name, ["/bin/sh", "-c", line], **options)


class Clock:
    """Time passes when somebody sleeps, and a little of it is real."""

    def __init__(self):
        self.now, self.step = 0.0, 0.0

    def __call__(self):
        self.now += self.step
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        time.sleep(0.002)


def supervisor():
    clock = Clock()
    return Supervisor(clock, clock.sleep), clock


def test_what_ends_is_started_again_later_and_later(tmp_path, caplog):
    watched, clock = supervisor()
    starts = []

    def until():
        count = len((tmp_path / "starts").read_text()) if (tmp_path / "starts").exists() else 0
        if count > len(starts):
            starts.append(clock.now)
        return len(starts) == 6

    service = shell("it", f"printf x >> {tmp_path}/starts; exit 7", longest_pause=5.0, advice="Look there.")
    watched.start(service)
    assert watched.watch(until)
    watched.end()
    pauses = [late - early for early, late in pairwise(starts)]
    for found, expected in zip(pauses, [1, 2, 4, 5, 5], strict=True):
        assert expected <= found < expected + 3
    assert "it ended with status 7 and is started again in 4 seconds. Look there." in caplog.text


def test_a_killed_process_is_started_again_and_the_signal_named(caplog):
    watched, _ = supervisor()
    service = shell("it", "sleep 60")
    watched.start(service)
    first = service.process.pid
    os.kill(first, signal.SIGKILL)
    assert watched.watch(lambda: service.process.pid != first)
    watched.end()
    assert service.process.returncode == -signal.SIGTERM
    assert "it was killed by signal 9 and is started again in 1 seconds." in caplog.text


def test_a_hopeless_process_ends_the_supervisor():
    watched, _ = supervisor()
    other = shell("other", "sleep 60")
    watched.start(other)
    watched.start(shell("it", "exit 3", hopeless=(3,)))
    assert not watched.watch()
    assert watched.status == 3
    watched.end()
    assert other.process.returncode == -signal.SIGTERM


def test_it_stops_when_it_is_told_to():
    watched, _ = supervisor()
    watched.stop()
    assert not watched.watch(lambda: True)
    assert watched.status == 0


def test_who_does_not_heed_sigterm_is_killed(tmp_path):
    watched, clock = supervisor()
    deaf = shell("deaf", f"trap '' TERM; touch {tmp_path}/ready; while :; do sleep 0.05; done")
    watched.start(deaf)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    clock.step = 10.0  # the time to heed it is over at once
    watched.end()
    assert deaf.process.returncode == -signal.SIGKILL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends processes with their parent")
def test_nothing_is_left_when_the_supervisor_itself_is_killed():
    script = (
        "from fedlightning.flower.supervisor import Service, Supervisor\n"
        "s = Service('it', ['/bin/sleep', '60'])\nw = Supervisor()\nw.start(s)\nprint(s.process.pid, flush=True)\n"
        "w.watch()"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        child = int(process.stdout.readline())
        process.kill()
    end = time.monotonic() + 10
    while time.monotonic() < end and _is_alive(child):
        time.sleep(0.05)
    assert not _is_alive(child)


def _is_alive(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
