"""Arguments are passed on to the process that runs the command, also while it is being started."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.flower import pass_on


def answering(path, status, heard, delay=0.0):
    def serve():
        time.sleep(delay)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen(1)
            connection, _ = listener.accept()
            with connection:
                heard.append(json.loads(connection.makefile().readline()))
                connection.sendall(status)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize(("status", "expected"), [(b"0\n", 0), (b"42\n", 42), (b"", 1)])
def test_arguments_go_there_and_the_status_comes_back(status, expected, tmp_path):
    heard = []
    thread = answering(tmp_path / "s", status, heard, delay=0.2)  # it is not there at first
    assert pass_on.main(str(tmp_path / "s"), "--token", 'a "b"') == expected
    thread.join(5)
    assert heard == [["flwr-clientapp", "--token", 'a "b"']]


def test_it_gives_up_at_last(tmp_path, monkeypatch):
    monkeypatch.setattr(pass_on, "PATIENCE", 0.2)
    with pytest.raises(FileNotFoundError):
        pass_on.main(str(tmp_path / "s"))


def test_it_runs_without_the_package(tmp_path):
    heard = []
    thread = answering(tmp_path / "s", b"0\n", heard)
    subprocess.run([sys.executable, "-S", "-E", pass_on.__file__, tmp_path / "s", "--x"], cwd="/", env={}, check=True)
    thread.join(5)
    assert heard == [["flwr-clientapp", "--x"]]
