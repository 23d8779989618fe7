"""Seconds a round, and memory of the link, by size of the messages: this package's federation, and plain Flower.

Three nodes on this machine, TLS and keys, a point of 2,500 to 25,000,000 numbers, one local step. Ours writes what
clients keep, and a checkpoint after every round; plain Flower is its strategy FedAvg as shipped, whose clients import
torch, and writes nothing. Both use the same link, certificates and keys.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from sysconfig import get_path
from typing import Protocol

from fedlightning.flower.deployment.flower_commands import FlowerCommands, is_taken, program
from fedlightning.flower.deployment.server_folder import ServerFolder
from fedlightning.flower.node_config import read_node_config, write_node_config

sys.path.append(str(Path(__file__).parent))
from machines import Service, command, fedlightning, free_port, until

HERE = Path(__file__).parent
SIZES = {"10 kB": (2_500, 8), "1 MB": (250_000, 8), "100 MB": (25_000_000, 3)}
"""Numbers of a message, and rounds; the first round is not counted."""
NODES = ("a", "b", "c")
PATIENCE = 900.0


@dataclass(frozen=True)
class Measured:
    """Holds what was measured.

    Attributes:
        seconds: Of each round but the first.
        memory: Largest memory of the link's process, in MB.
        load: The machine's load average before and after.
    """

    seconds: list[float]
    memory: float
    load: tuple[float, float]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/round_time"), help="where everything goes")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="of the messages")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="of carrying out rounds")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    print("| message | way | seconds a round (median; fastest-slowest) | memory of the link | load |", flush=True)
    print("| --- | --- | ---: | ---: | ---: |", flush=True)
    for size in given.sizes:
        for way in given.ways:
            folder = given.folder.absolute() / f"{way}-{size}".replace(" ", "-")
            shutil.rmtree(folder, ignore_errors=True)
            it = measure(folder, *SIZES[size], WAYS[way])
            seconds = f"{statistics.median(it.seconds):.1f} ({min(it.seconds):.1f}-{max(it.seconds):.1f})"
            load = f"{it.load[0]:.1f}-{it.load[1]:.1f}"
            print(f"| {size} | {way} | {seconds} | {it.memory:.0f} MB | {load} |", flush=True)
            shutil.rmtree(folder)


def measure(folder: Path, size: int, rounds: int, way: Way) -> Measured:
    """Run a federation, and return how long its rounds took."""
    folder.mkdir(parents=True)
    nodes = [f"{name}={client}" for client, name in enumerate(NODES)]
    (folder / "size.yaml").write_text(f"model:\n  init_args:\n    size: {size}\n")
    configs = [f"--config={HERE / 'round_time.yaml'}", f"--config={folder / 'size.yaml'}"]
    there, before = folder / "point", os.getloadavg()[0]
    fedlightning("federation", "new", there, f"--address=127.0.0.1:{free_port()}", "--nodes", *nodes, *configs)
    server = ServerFolder.find(there)
    listen = server.federation.listen
    services = [Service("link", folder / "link.log", command("federation", "link", there))]
    try:
        until(lambda: is_taken(listen.host, listen.port), services, PATIENCE)
        fedlightning("federation", "register", there)
        services += [Service(name, folder / f"{name}.log", way.node(there / "nodes" / name)) for name in NODES]
        times = watched(way.start(server, size, rounds), rounds, services)
        memory = peak(services[0].program("flower-superlink"))
    finally:
        for service in reversed(services):
            service.stop()
    return Measured([later - earlier for earlier, later in pairwise(times)], memory, (before, os.getloadavg()[0]))


def watched(progress: Path, rounds: int, services: Sequence[Service]) -> list[float]:
    """Return when each round was finished."""
    times: dict[int, float] = {}

    def is_over() -> bool:
        if progress.exists():
            content = json.loads(progress.read_text())
            if content["round"]:
                times[content["round"]] = content["time"]
        return rounds in times

    until(is_over, services, PATIENCE)
    return [times[each] for each in sorted(times)]


def peak(process: int) -> float:
    """Return the largest memory that a process has had, in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1000


class Way(Protocol):
    """A way of carrying out rounds over Flower's link."""

    def node(self, home: Path) -> list[str]:
        """Return the command line of the node whose folder is given."""

    def start(self, server: ServerFolder, size: int, rounds: int) -> Path:
        """Start the run, and return the file that says how far it is."""


class Ours:
    """A federation of this package."""

    def node(self, home: Path) -> list[str]:
        """Return the command that starts the node."""
        config = read_node_config(home / "node.yaml")
        write_node_config(replace(config, port=free_port()), home / "node.yaml")
        return command("node", "start", "--config", home / "node.yaml")

    def start(self, server: ServerFolder, size: int, rounds: int) -> Path:
        """Submit the run."""
        fedlightning("federation", "run", server.path, "--detach", f"--trainer.max_steps={rounds}")
        return server.runs / "progress.json"


class Plain:
    """Flower without this package; certificates and keys are the same."""

    def node(self, home: Path) -> list[str]:
        """Return the command of Flower's node process."""
        config = read_node_config(home / "node.yaml")
        return [
            *("env", f"FLWR_HOME={home}", "FLWR_TELEMETRY_ENABLED=0", "FLWR_DISABLE_UPDATE_CHECK=1"),
            *(f"PATH={get_path('scripts')}{os.pathsep}{os.environ['PATH']}", program("flower-supernode")),
            *("--superlink", config.superlink, "--root-certificates", str(config.certificates_file)),
            *("--auth-supernode-private-key", str(config.key_file), "--host", "127.0.0.1", "--port", str(free_port())),
        ]

    def start(self, server: ServerFolder, size: int, rounds: int) -> Path:
        """Submit the run of the app in ``plain_flower``."""
        progress, config = server.runs / "progress.json", server.link / "run.toml"
        config.write_text(f"size = {size}\nrounds = {rounds}\nprogress = {json.dumps(str(progress))}\n")
        FlowerCommands(server).ask("run", str(HERE / "plain_flower"), "--run-config", str(config))
        return progress


WAYS: dict[str, Way] = {"fedlightning": Ours(), "plain Flower": Plain()}


if __name__ == "__main__":
    main()
