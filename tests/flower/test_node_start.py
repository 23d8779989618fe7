"""A node's processes: in which order they start, what they are given, and what is refused before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

from fedlightning.core.errors import MissingFileError
from fedlightning.flower.node_app import WORKER
from fedlightning.flower.node_config import NodeConfig, write_node_config
from fedlightning.flower.node_start import Node, start


def config(folder):
    return NodeConfig("a", "fed.example.org:8443", [0], {"class_path": "my.Data"}, port=9600, folder=folder)


class Watched:
    """A supervisor that starts nothing."""

    def __init__(self, worker_gets_ready=True):
        self.started, self.ended, self.ready = [], False, worker_gets_ready

    def start(self, service):
        self.started.append(service)

    def watch(self, until=lambda: False):
        return self.ready

    def end(self):
        self.ended = True


def test_flower_is_started_when_the_worker_is_ready(tmp_path):
    watched, said = Watched(), []
    node = Node(config(tmp_path), tmp_path / "node.yaml", tmp_path)
    node.run(watched, ready=lambda: said.append([each.name for each in watched.started]))
    assert said == [["worker", "apps"]]
    assert [each.name for each in watched.started] == ["worker", "apps", "flower-supernode"]
    assert watched.ended
    watched = Watched(worker_gets_ready=False)
    node.run(watched, ready=lambda: said.append("never"))
    assert [each.name for each in watched.started] == ["worker", "apps"]
    assert watched.ended
    assert len(said) == 1


def test_flower_gets_key_and_certificate_and_listens_on_this_machine_alone(tmp_path):
    node = Node(config(tmp_path), tmp_path / "node.yaml", tmp_path)
    assert Path(node.flower[0]).name == "flower-supernode"
    options = dict(zip(node.flower[1::2], node.flower[2::2], strict=True))
    assert options == {
        "--superlink": "fed.example.org:8443",
        "--root-certificates": str(tmp_path / "ca.crt"),
        "--auth-supernode-private-key": str(tmp_path / "node.key"),
        "--host": "127.0.0.1",
        "--port": "9600",
    }
    assert "--insecure" not in node.flower


def test_flower_finds_our_commands_first_and_calls_nobody_but_the_link(tmp_path):
    watched = Watched()
    Node(config(tmp_path), tmp_path / "node.yaml", tmp_path).run(watched)
    worker, apps, flower = watched.started
    for service in (apps, flower):
        folder = Path(service.environment["PATH"].split(os.pathsep)[0])
        assert (folder / "flwr-clientapp").is_file()
        assert service.environment[WORKER] == worker.command[-1]
        assert service.environment["FLWR_TELEMETRY_ENABLED"] == "0"
        assert service.environment["FLWR_HOME"].startswith(str(tmp_path))
    assert worker.hopeless == (3,)


def test_without_a_key_nothing_is_started(tmp_path):
    write_node_config(config(tmp_path), tmp_path / "node.yaml")
    (tmp_path / "ca.crt").touch()
    with pytest.raises(MissingFileError, match=r"private_key=node\.key: there is no file"):
        start(str(tmp_path / "node.yaml"))
