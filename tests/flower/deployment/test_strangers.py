"""A link of a new federation lets its own nodes in over TLS, and nobody else; checked with Flower's processes."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

from fedlightning.flower.deployment.certificates import make_authority
from fedlightning.flower.deployment.flower_commands import FlowerCommands, FlowerError, is_taken, program
from fedlightning.flower.deployment.node_keys import make_node_key
from fedlightning.flower.deployment.registration import Registration
from fedlightning.flower.deployment.runs import Runs
from tests.support.deployment import federation_in


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture(scope="module")
def flower(tmp_path_factory):
    """Flower's commands for a federation whose link runs and knows node a, not node b."""
    folder = tmp_path_factory.mktemp("federation") / "f"
    commands = FlowerCommands(federation_in(folder, f"127.0.0.1:{free_port()}"))
    with (folder / "link.log").open("wb") as log:
        link = subprocess.Popen(commands.link(), env=commands.environment, stdout=log, stderr=log)
    listen = commands.server.federation.listen
    try:
        until(lambda: is_taken(listen.host, listen.port))
        Registration(commands).add(["a"])
        yield commands
    finally:
        link.terminate()
        link.wait(30)


def start(flower, folder, *arguments):
    """Flower's process of a node, and where it says what it does."""
    command = [program("flower-supernode"), "--superlink", str(flower.server.federation.listen), *map(str, arguments)]
    environment = {**flower.environment, "FLWR_HOME": str(folder / "home")}
    with (folder / "log").open("wb") as log:
        port = ["--host", "127.0.0.1", "--port", str(free_port())]
        return subprocess.Popen([*command, *port], env=environment, stdout=log, stderr=log), folder / "log"


def strangers(flower, folder):
    """What strangers come with, and what they are told."""
    home = flower.server.path.parent / "nodes" / "a"
    (folder / "other.key").write_bytes(make_node_key("a").private)
    (folder / "other.crt").write_bytes(make_authority("digits").certificate)
    os.chmod(folder / "other.key", 0o600)
    ours = ["--root-certificates", home / "ca.crt"]
    key = ["--auth-supernode-private-key", home / "node.key"]
    return {
        "key nobody knows": ([*ours, "--auth-supernode-private-key", folder / "other.key"], r"\[code: 2004\]"),
        "key not registered": (
            [*ours, "--auth-supernode-private-key", home.with_name("b") / "node.key"],
            r"\[code: 2004\]",
        ),
        "no key": (ours, r"\[code: 2001\]"),
        "another authority": (["--root-certificates", folder / "other.crt", *key], "CERTIFICATE_VERIFY_FAILED"),
        "clear text": (["--insecure", "--max-retries", 2], "(?i)connection attempt failed|disconnected"),
        "clear text with a key": (["--insecure", *key], "secure"),
    }


def test_a_registered_node_comes_in_and_strangers_do_not(flower, tmp_path):
    own = flower.server.path.parent / "nodes" / "a"
    (tmp_path / "own").mkdir()
    node, log = start(
        flower,
        tmp_path / "own",
        "--root-certificates",
        own / "ca.crt",
        "--auth-supernode-private-key",
        own / "node.key",
    )
    try:
        until(lambda: "SuperNode ID" in log.read_text())
    finally:
        node.terminate()
        node.wait(30)
    started = {}
    for who, (arguments, said) in strangers(flower, tmp_path).items():
        (tmp_path / who).mkdir()
        started[who] = (*start(flower, tmp_path / who, *arguments), said)
    try:
        for who, (stranger, log, said) in started.items():
            assert stranger.wait(60) != 0, who
            told = log.read_text()
            assert re.search(said, told), f"{who}: {told}"
            assert "SuperNode ID" not in told, who
    finally:
        for stranger, *_ in started.values():
            stranger.kill()
            stranger.wait()


def test_a_node_that_was_removed_does_not_come_back(flower, tmp_path):
    Registration(flower).add(["b"])
    Registration(flower).remove(["b"])
    own = flower.server.path.parent / "nodes" / "b"
    node, log = start(
        flower, tmp_path, "--root-certificates", own / "ca.crt", "--auth-supernode-private-key", own / "node.key"
    )
    assert node.wait(60) != 0
    assert re.search(r"\[code: 2004\]", log.read_text())


def test_commands_do_not_trust_another_authority(flower, tmp_path):
    shutil.copytree(flower.server.path, tmp_path / "server")
    (tmp_path / "server" / "ca.crt").write_bytes(make_authority("digits").certificate)
    assert Runs(flower).all() == []
    with pytest.raises(FlowerError, match="Connection to the SuperLink is unavailable"):
        Runs(FlowerCommands(type(flower.server)(tmp_path / "server"))).all()
