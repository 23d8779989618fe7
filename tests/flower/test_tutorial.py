"""The tutorial runs as it is written, with processes, TLS and keys, and ends where its simulation does."""

from __future__ import annotations

import re
import shlex
import signal
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr", reason="Flower is not installed; make flower runs these tests")
pytestmark = [pytest.mark.flower, pytest.mark.slow]

import torch

from fedlightning.cli.federation_commands import COMMANDS
from fedlightning.flower.deployment.flower_commands import is_taken
from tests.support.pages import blocks
from tests.support.paths import CONFIGS, ROOT

TUTORIAL = ROOT / "docs" / "tutorials" / "federation.md"
PAGES = [TUTORIAL, *(ROOT / "docs" / f"{name}.md" for name in ("federation", "federation-services"))]


def commands(page):
    """The command lines of a page, without the prompt."""
    lines = (
        line for block in blocks(page.read_text()) if block.language == "console" for line in block.text.splitlines()
    )
    return [line.removeprefix("$ ") for line in lines]


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_for(port, seconds=60):
    end = time.monotonic() + seconds
    while not is_taken("127.0.0.1", port):
        assert time.monotonic() < end
        time.sleep(0.2)


class Terminal:
    """Carries out lines as a shell would, in one folder."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []

    def run(self, line):
        """Carry out a line, and return what it prints; a line that ends in ``&`` goes on in the background."""
        words = [sys.executable, "-m", *shlex.split(line.removesuffix("&"))]
        if line.endswith("&"):
            with (self.folder / f"{len(self.running)}.log").open("wb") as log:
                self.running.append(subprocess.Popen(words, cwd=self.folder, stdout=log, stderr=log))
            return ""
        done = subprocess.run(words, cwd=self.folder, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}{self.logs()}"
        return done.stdout

    def check_python(self, page):
        """Carry out the Python of a page, and compare what it prints."""
        for block in blocks(page.read_text()):
            if block.language == "python":
                done = subprocess.run(
                    [sys.executable, "-c", block.text], cwd=self.folder, capture_output=True, text=True
                )
                assert done.returncode == 0, done.stderr
                assert done.stdout == block.prints

    def logs(self):
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def close(self):
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait(30)


@pytest.fixture
def terminal(tmp_path):
    (tmp_path / "configs").symlink_to(CONFIGS)
    there = Terminal(tmp_path)
    yield there
    there.close()


def parameters(checkpoint):
    stored = torch.load(checkpoint, weights_only=True)
    return stored["global_step"], torch.cat([value.flatten() for value in stored["state_dict"].values()])


def test_the_tutorial_ends_where_its_simulation_does(terminal):
    link, *nodes = free_ports(3)
    for block in blocks(TUTORIAL.read_text()):
        if block.file:
            (terminal.folder / block.file).write_text(block.text)
    said = {}
    for line in commands(TUTORIAL):
        said[line] = terminal.run(line.replace(":8443", f":{link}"))
        if "federation new" in line:
            for name, port in zip("ab", nodes, strict=True):
                file = terminal.folder / "digits" / "nodes" / name / "node.yaml"
                file.write_text(re.sub(r"port: \d+", f"port: {port}", file.read_text()))
        if "federation link" in line:
            wait_for(link)
    runs = terminal.folder / "digits" / "server" / "runs"
    rounds, there = parameters(runs / "version_0" / "checkpoints" / "last.ckpt")
    assert (rounds, parameters(runs / "version_1" / "checkpoints" / "last.ckpt")[0]) == (6, 9)
    _, here = parameters(terminal.folder / "runs" / "version_0" / "checkpoints" / "last.ckpt")
    torch.testing.assert_close(there, here, rtol=1e-5, atol=1e-6)
    assert (here - parameters(runs / "version_1" / "checkpoints" / "last.ckpt")[1]).abs().max() > 1e-3
    own = torch.load(terminal.folder / "client-0.pt", weights_only=True)
    shared = torch.load(runs / "version_1" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(own["body.1.weight"], shared["network.body.1.weight"])
    assert (own["head.weight"] - shared["network.head.weight"]).abs().max() > 0.01
    assert len(torch.load(terminal.folder / "predictions.pt", weights_only=True)) > 10
    terminal.check_python(TUTORIAL)
    last = [said[line] for line in said if "status" in line][-1]
    assert "node a: online, clients 0, 1\nnode b: online, clients 2, 3\n" in last
    assert "finished:completed" in last
    assert "round 9 of 9" in last


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_every_command_of_the_pages_exists(page):
    for words in map(shlex.split, commands(page)):
        if words[:2] == ["fedlightning", "federation"]:
            assert words[2] in COMMANDS
            options = subprocess.run(
                [sys.executable, "-m", "fedlightning", *words[1:3], "--help"],
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            known = re.findall(r"--\w+", options)
            assert {each.partition("=")[0] for each in words if each.startswith("--") and "." not in each} <= set(known)
