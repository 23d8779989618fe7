"""A federation of processes on this machine: its link and nodes, with certificates and keys."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import yaml

from fedlightning.flower.deployment.address import Address
from fedlightning.flower.deployment.federation_file import Federation
from fedlightning.flower.deployment.flower_commands import FlowerCommands, is_taken
from fedlightning.flower.deployment.new import NewFederation
from fedlightning.flower.deployment.registration import Registration
from fedlightning.flower.deployment.runs import Runs
from fedlightning.flower.deployment.simulation_config import SimulationConfig
from fedlightning.flower.node_config import read_node_config, write_node_config
from tests.support.paths import ROOT

SHORT_POLLS = ROOT / "tests" / "support" / "short_polls"
PATIENCE = 120.0


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(condition, what):
    """The first true value of a condition."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.1)
    raise AssertionError(f"{what} did not come within {PATIENCE:g} seconds")


class RealFederation:
    """Processes of a federation, each with its log in a file.

    Attributes:
        server: The server's folder.
        runs: Its runs.
    """

    def __init__(self, folder, config, nodes):
        """Make the folders, start the link, and register the nodes."""
        self.folder = folder
        self._running = {}
        simulation = folder / "simulation.yaml"
        simulation.write_text(yaml.safe_dump(config))
        at = Address.parse(f"127.0.0.1:{free_port()}", "address")
        new = NewFederation(Federation("ward", at, at, nodes), SimulationConfig.read([simulation]))
        self.server = new.write(folder / "f")
        for node in nodes:
            file = self.home(node) / "node.yaml"
            write_node_config(replace(read_node_config(file), port=free_port(), accelerator="cpu"), file)
        environ = os.environ
        environ |= {"PYTHONPATH": os.pathsep.join([str(ROOT), str(SHORT_POLLS)]), "OMP_NUM_THREADS": "1",
                    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1"}  # fmt: skip
        self.flower = FlowerCommands(self.server)
        self.runs = Runs(self.flower)
        self.start("link", self.flower.link(), self.flower.environment)
        listen = self.server.federation.listen
        wait_for(lambda: is_taken(listen.host, listen.port), "the link")
        Registration(self.flower).add()

    def home(self, node):
        return self.folder / "f" / "nodes" / node

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def start(self, name, command, environment=None):
        with (self.folder / f"{name}.log").open("a") as file:
            process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)
        self._running[name] = process
        return process

    def start_node(self, node):
        command = [sys.executable, "-m", "fedlightning", "node", "start", "--config", self.home(node) / "node.yaml"]
        self.start(node, command)

    def kill(self, name):
        """End a process as ``kill -9`` does."""
        self._running[name].kill()
        self._running.pop(name).wait()

    def kill_worker(self, node):
        """End the worker of a node as ``kill -9`` does."""
        lines = [line for line in self.log(node).splitlines() if "worker started, process" in line]
        os.kill(int(lines[-1].split()[-1]), signal.SIGKILL)

    def rounds(self):
        progress = self.runs.progress()
        return 0 if progress is None else progress["round"]

    def last_checkpoint(self):
        return max(self.server.runs.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)

    def close(self):
        """End all processes, the last first, and return the exit status of each."""
        found = {}
        for name, process in reversed(self._running.items()):
            process.terminate()
            try:
                found[name] = process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                found[name] = process.wait()
        return found
