"""Flower's commands are called with the federation's own settings, and what they refuse becomes one sentence."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = pytest.mark.flower

import re
import socket
import socketserver
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager

import tomli

from fedlightning.core.errors import MissingFileError, UsageError
from fedlightning.flower.deployment import flower_commands
from fedlightning.flower.deployment.flower_commands import FlowerCommands, FlowerError, is_taken, program
from tests.support.deployment import federation_in


@contextmanager
def listening():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        one.listen(8)
        yield one.getsockname()[1]


@pytest.fixture
def server(tmp_path):
    """A federation whose link's port is taken by something that says nothing."""
    with listening() as port:
        yield federation_in(tmp_path / "f", f"127.0.0.1:{port}")


@pytest.fixture
def flwr(tmp_path, monkeypatch):
    """Puts a program in the place of flwr."""

    def put(code):
        file = tmp_path / "flwr"
        file.write_text(f"#!{sys.executable}\nimport json, os, sys\n{code}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setattr(flower_commands, "program", lambda name: str(tmp_path / name))

    return put


def test_the_link_has_tls_known_nodes_and_a_database(tmp_path):
    server = federation_in(tmp_path / "f", "fed.example.org:443")
    words = FlowerCommands(server).link()
    options = dict(zip(words, [*words[1:], ""], strict=True))
    assert options["--ssl-certfile"] == str(server.certificate)
    assert options["--ssl-keyfile"] == str(server.key)
    assert options["--ssl-ca-certfile"] == str(server.authority)
    assert options["--database"] == str(server.link / "state.db")
    assert (options["--host"], options["--port"]) == ("127.0.0.1", "8443")
    assert {"--enable-supernode-auth", "--disable-runtime-dependency-installation"} <= set(words)
    assert "--insecure" not in words


def test_flower_knows_every_option_of_the_link(tmp_path):
    words = FlowerCommands(federation_in(tmp_path / "f")).link()
    known = subprocess.run([words[0], "--help"], capture_output=True, text=True, check=True).stdout
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", known))


def test_commands_get_their_settings_and_the_link_s_name(server, flwr):
    shown = []
    flwr('print("a note {", json.dumps({"success": True, "words": sys.argv[1:], "home": os.environ["FLWR_HOME"]}))')
    answer = FlowerCommands(server, shown.append).ask("supernode", "register", "a.pub", "--name", "a")
    assert answer["words"] == ["supernode", "register", "a.pub", "federation", "--name", "a", "--format", "json"]
    assert answer["home"] == str(server.link)
    assert shown == [
        f"FLWR_HOME={server.link} FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1 "
        "flwr supernode register a.pub federation --name a --format json"
    ]
    config = tomli.loads((server.link / "config.toml").read_text())["superlink"]
    assert config[config["default"]] == {
        "address": str(server.federation.listen),
        "root-certificates": str(server.authority),
    }


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ('print(json.dumps({"success": False, "error-message": "no\\n such key"})); sys.exit(1)', "no such key"),
        ('print("╭─ Error ─╮\\n│ wrong key │\\n╰───╯", file=sys.stderr); sys.exit(1)', "wrong key"),
        ("sys.exit(1)", "it failed and gives no reason"),
        ('print("{}")', "it failed|{}"),
    ],
)
def test_what_flower_refuses_is_one_sentence(code, why, server, flwr):
    flwr(code)
    with pytest.raises(FlowerError, match=f"^flwr supernode list: ({why})"):
        FlowerCommands(server).ask("supernode", "list")


def test_a_log_is_passed_on_until_its_end(server, flwr, capfd):
    flwr('print("log", *sys.argv[1:], flush=True)')
    FlowerCommands(server).follow("17")
    assert capfd.readouterr().out == "log log 17 federation --stream\n"
    flwr('print("Error: Run ID not found", file=sys.stderr); sys.exit(1)')
    with pytest.raises(FlowerError, match="flwr log: Run ID not found"):
        FlowerCommands(server).follow("17")


def test_flower_itself_does_not_take_just_anything_for_a_link(tmp_path):
    class Deaf(socketserver.BaseRequestHandler):
        """Hangs up."""

    with socketserver.TCPServer(("127.0.0.1", 0), Deaf) as deaf:
        threading.Thread(target=deaf.serve_forever, daemon=True).start()
        server = federation_in(tmp_path / "f", f"127.0.0.1:{deaf.server_address[1]}")
        with pytest.raises(FlowerError, match="flwr ls: Connection to the SuperLink is unavailable"):
            FlowerCommands(server).ask("ls")
        deaf.shutdown()


def test_a_link_that_is_not_running_is_named(tmp_path):
    with listening() as port:
        server = federation_in(tmp_path / "f", f"127.0.0.1:{port}")
        assert is_taken("127.0.0.1", port)
    assert not is_taken("127.0.0.1", port)
    with pytest.raises(UsageError, match=f"nothing listens on 127.0.0.1:{port}. Start it by fedlightning federation"):
        FlowerCommands(server).ask("ls")


def test_commands_are_those_of_this_environment():
    assert program("flwr").endswith("/flwr")
    with pytest.raises(MissingFileError, match="no such command, though Flower is installed"):
        program("flower-superfluous")
