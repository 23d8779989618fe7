"""A message costs a fork and no import, and whatever app it came with, the installed one answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from flwr.supernode.runtime import run_clientapp as process

from fedlightning.core.errors import UsageError
from fedlightning.flower import node_app
from fedlightning.flower.app_processes import use_installed_app
from fedlightning.flower.commands import write_commands
from tests.support.paths import ROOT

FROM_OUTSIDE = ("install_from_fab", "get_load_client_app_fn", "install_app_dependencies")


@pytest.fixture
def flower(monkeypatch):
    """Flower's process as it was, afterwards."""
    for name in FROM_OUTSIDE:
        monkeypatch.setattr(process, name, getattr(process, name))
    return monkeypatch


@pytest.fixture(scope="module")
def apps(tmp_path_factory):
    """The process, its socket, and what it prints."""
    folder = tmp_path_factory.mktemp("apps")
    path, log = folder / "run" / "apps", folder / "log"
    path.parent.mkdir()
    with log.open("w") as file:
        command = [sys.executable, "-m", "fedlightning.flower.app_processes", str(path)]
        running = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        while not path.exists() and running.poll() is None:
            time.sleep(0.05)
        yield path, log, running
        running.kill()
        running.wait()


def test_nothing_of_an_app_that_is_sent_is_used(flower):
    use_installed_app()
    assert process.install_from_fab(b"whatever", skip_prompt=True) is None
    assert process.install_app_dependencies(Path("anywhere")) is None
    load = process.get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    assert load("their/app", "1.0", "hash") is node_app.app


@pytest.mark.parametrize("name", FROM_OUTSIDE)
def test_another_flower_is_refused(name, flower):
    flower.delattr(process, name)
    with pytest.raises(UsageError, match=f"has no {name}, .* keep it from running the code"):
        use_installed_app()


def test_a_command_is_run_by_a_fork(apps, tmp_path):
    path, log, running = apps
    write_commands(tmp_path / "commands", path)
    command = tmp_path / "commands" / "flwr-clientapp"
    assert subprocess.run([command, "--help"]).returncode == 0
    assert subprocess.run([command, "--no-such-option"]).returncode == 2
    said = log.read_text()
    assert "usage: flwr-clientapp" in said
    assert "--runtime-api-address" in said
    assert running.poll() is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_what_is_no_command_does_not_end_the_process(apps):
    path, _, running = apps
    for line in (b"no JSON\n", b""):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
            assert connection.makefile().readline() == ""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(json.dumps(["flwr-clientapp", "--help"]).encode() + b"\n")
        assert connection.makefile().readline() == "0\n"
    assert running.poll() is None


def test_a_command_comes_soon(apps, tmp_path):
    """Importing what it needs takes two seconds of processor time, a fork next to nothing."""
    write_commands(tmp_path / "commands", apps[0])
    before = os.times()
    subprocess.run([tmp_path / "commands" / "flwr-clientapp", "--help"], check=True)
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.5


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked for in /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_waits_for_a_link_that_is_away_ends_with_the_process(number, tmp_path):
    path = tmp_path / "run" / "apps"
    path.parent.mkdir()
    write_commands(tmp_path / "commands", path)
    command = [sys.executable, "-m", "fedlightning.flower.app_processes", str(path)]
    nowhere = ["--runtime-api-address", "127.0.0.1:1", "--token", "none", "--insecure"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as running:
        while not path.exists():
            time.sleep(0.05)
        waiting = subprocess.Popen([tmp_path / "commands" / "flwr-clientapp", *nowhere], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 20
        while not (forks := children(running.pid)) and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(1.0)  # Flower has put its own handlers in place
        assert forks == children(running.pid) != []
        running.send_signal(number)
    while any(map(is_alive, forks)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(is_alive, forks))
    assert waiting.wait(20) == 1


def children(number):
    """The processes that a process has started and that live."""
    return [int(each) for each in Path(f"/proc/{number}/task/{number}/children").read_text().split()]


def is_alive(number):
    try:
        return Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
