"""The app passes messages on to the worker of its node."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from flwr.app import Context, Message, RecordDict

import tests.support.local_grid  # noqa: F401  # messages ask who makes them
from fedlightning.core.errors import UsageError
from fedlightning.federation.remote.packet import Packet
from fedlightning.flower import node_app
from fedlightning.flower.client_app import make_client_app
from fedlightning.flower.local_socket import AwayError, LocalServer
from fedlightning.flower.records import to_packet, to_record


def reply(app, packet):
    return app(Message(to_record(packet), 7, "train", ttl=90.0), Context(1, 7, {}, RecordDict(), {}))


def test_a_message_goes_to_the_worker(tmp_path, monkeypatch):
    server, heard = LocalServer(tmp_path / "w"), []

    def answer(data, seconds):
        heard.append((Packet.from_bytes(data).kind, seconds))
        return Packet("answers").to_bytes()

    thread = threading.Thread(target=server.serve, args=(answer, lambda: bool(heard)), daemon=True)
    thread.start()
    monkeypatch.setenv(node_app.WORKER, str(tmp_path / "w"))
    assert to_packet(reply(node_app.app, Packet("ask")).content).kind == "answers"
    thread.join(5)
    server.close()
    assert heard == [("ask", 90.0)]


def test_without_a_worker_it_says_how_to_start_one(monkeypatch):
    monkeypatch.delenv(node_app.WORKER, raising=False)
    with pytest.raises(UsageError, match="fedlightning node start"):
        reply(node_app.app, Packet("ask"))


def test_a_worker_that_is_away_is_a_silence_and_no_fault():
    def away(data, seconds):
        raise AwayError("it was not there for 120 seconds")

    error = reply(make_client_app(away), Packet("ask")).error
    assert (error.code, error.reason) == (5, "the worker of the node: it was not there for 120 seconds")
