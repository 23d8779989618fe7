"""Messages pass between processes of one user, and outlast the restart of the one that answers."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from contextlib import contextmanager

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.flower.local_socket import AwayError, LocalServer, ask, send


@contextmanager
def serving(path, handle, count=1, **options):
    """A server in a thread, for so many connections."""
    server, left = LocalServer(path, **options), iter(range(count))
    thread = threading.Thread(target=server.serve, args=(handle, lambda: next(left, None) is None), daemon=True)
    thread.start()
    yield
    thread.join(5)
    assert not thread.is_alive()
    server.close()


def test_a_message_comes_back_changed(tmp_path):
    large = os.urandom(3 * 2**20 + 1)
    with serving(tmp_path / "s", lambda data, seconds: data[::-1], 2):
        assert ask(tmp_path / "s", large, 60) == large[::-1]
        assert ask(tmp_path / "s", b"", 60) == b""


def test_who_answers_is_told_for_how_long_somebody_waits(tmp_path):
    with serving(tmp_path / "s", lambda data, seconds: str(seconds).encode()):
        assert ask(tmp_path / "s", b"", 12.5) == b"12.5"


def test_the_socket_is_its_owners_alone(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    LocalServer(folder / "s").close()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o600


def test_broken_and_oversized_messages_are_left_out(tmp_path, caplog):
    heard = []
    with serving(tmp_path / "s", lambda data, seconds: heard.append(data) or b"well", 3, largest=100):
        for sent in (bytes(8) + (2**62).to_bytes(8, "little"), bytes(8) + (50).to_bytes(8, "little") + b"only this"):
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(tmp_path / "s"))
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                assert connection.recv(1) == b""
        assert ask(tmp_path / "s", b"whole", 60) == b"well"
    assert heard == [b"whole"]
    assert "claims to have 4611686018427387904 bytes; at most 100 are read" in caplog.text
    assert "breaks off after 9 of 50 bytes" in caplog.text


def test_who_does_not_wait_for_the_answer_disturbs_nobody(tmp_path):
    with serving(tmp_path / "s", lambda data, seconds: bytes(2**22), 2):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(tmp_path / "s"))
            connection.sendall(bytes(8))
            send(connection, b"1")
        assert len(ask(tmp_path / "s", b"2", 60)) == 2**22


def test_a_message_waits_while_the_process_is_started_again(tmp_path):
    """It dies over the first try, is away for a moment, and answers the second."""
    path = tmp_path / "s"
    thread = threading.Thread(target=die_and_come_back, args=(LocalServer(path), path), daemon=True)
    thread.start()
    assert ask(path, b"hello", 60, patience=5, pause=0.02) == b"again hello"
    thread.join(5)


def exit_here():
    raise ConnectionResetError("the process ends")


def die_and_come_back(server, path):
    heard = []

    def handle(data, seconds):
        heard.append(data)
        exit_here()

    server.serve(handle, lambda: bool(heard))
    server.close()
    path.unlink()
    time.sleep(0.2)
    with serving(path, lambda data, seconds: b"again " + data):
        pass


def test_a_process_that_is_away_or_dies_over_a_message_is_named(tmp_path):
    with pytest.raises(AwayError, match=r"not there for 0\.1 seconds \(No such file"):
        ask(tmp_path / "s", b"", 60, patience=0.1, pause=0.02)

    def handle(data, seconds):
        exit_here()

    with serving(tmp_path / "s", handle, 3), pytest.raises(AwayError, match="ended 3 times before it had answered"):
        ask(tmp_path / "s", b"", 60, patience=5, pause=0.02)


def test_a_message_that_nobody_waits_for_is_not_sent_again(tmp_path):
    """One that hangs until the worker is ended does not hold the next worker."""
    heard = []

    def handle(data, seconds):
        heard.append(data)
        time.sleep(0.2)
        exit_here()

    with serving(tmp_path / "s", handle), pytest.raises(AwayError, match=r"before .* this message, after 0\.1 seconds"):
        ask(tmp_path / "s", b"", 0.1, patience=5, pause=0.02)
    assert len(heard) == 1
