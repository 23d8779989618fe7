"""Fifty-two kills of nodes, workers, servers and the link, at random moments and in writes; who lost what?

A federation of three nodes trains by SCAFFOLD, whose control variates would show an answer that is lost or counted
twice. ``kill -9`` hits Flower's process of a node, a whole node, a worker, the server's program or the link: at a
random moment, while a file is written, just after, or while an answer is uploaded. What was killed comes back as
services do; a server is resumed from its last checkpoint. At the end the loss of every round, the parameters and every
client's control variate are compared with those of ``fedlightning fit``, and the server's disk is searched for control
variates.

Each kill is a line of ``kills.jsonl``. Called again with the same folder, the program goes on with the kills that are
left.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedlightning.flower.deployment.flower_commands import is_taken
from fedlightning.flower.deployment.server_folder import ServerFolder
from fedlightning.flower.node_config import read_node_config, write_node_config

sys.path.append(str(Path(__file__).parent))
from demo import go_on, last, losses_in, rounds, run, table_in
from left_behind import left_behind
from machines import Service, command, fedlightning, free_port, say, until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FILES = ["configs/classification/base.yaml", "configs/classification/scaffold.yaml", "benchmarks/federation/kills.yaml"]
CONFIGS = [f"--config={ROOT / file}" for file in FILES]
NODES = {"a": "0-1", "b": "2-3", "c": "4-5"}
KILLS = (
    *(("worker", moment) for moment in ["random"] * 8 + ["in a write"] * 6 + ["after a write"] * 6),
    *(("server", moment) for moment in ["random"] * 6 + ["in a write"] * 2 + ["in a checkpoint"] * 4),
    *(("link", moment) for moment in ["random"] * 6 + ["in a write"] * 2 + ["in a checkpoint"] * 2),
    *(("node process", moment) for moment in ["random"] * 2 + ["in a write", "after a write"] + ["in an upload"] * 2),
    *(("node", moment) for moment in ["random"] * 2 + ["in a write", "after a write"]),
)
"""What is killed, and at what moment."""
PROGRAMS = {"worker": "fedlightning.flower.worker", "server": "flwr-serverapp", "node process": "flower-supernode"}
"""Programs of services, by what the table calls them; what is not here is a service with all its processes."""
WRITERS = {
    *((what, "in a write") for what in ("worker", "node")),
    *((what, "in a checkpoint") for what in ("server", "link")),
}
"""What writes the file whose write is the moment, and may leave it unfinished."""
LONGEST = 4.0
"""Seconds within which a random moment lies: about a round."""
PATIENCE = 300.0


@dataclass(frozen=True)
class Outcome:
    """Tells what came of a kill.

    Attributes:
        number: Of the kill.
        what: Was killed.
        where: The service.
        moment: When; what was aimed at a write that did not come is ``random``.
        unfinished: Whether a file that was not finished was left behind.
        round: Rounds that were finished.
        repeated: Rounds that the resumed server did once more.
        seconds: From the kill until two more rounds were finished.
    """

    number: int
    what: str
    where: str
    moment: str
    unfinished: bool
    round: int
    repeated: int
    seconds: float


def main() -> None:
    """Run the federation through its kills; ends with an error if it does not end where the simulation does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("build/kills"), help="where everything goes")
    parser.add_argument("--first", type=int, default=0, help="the first of the kills, in their random order")
    parser.add_argument("--kills", type=int, default=len(KILLS), help="how many of them")
    parser.add_argument("--seed", type=int, default=0, help="of order and moments")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="after which no further kill begins")
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    folder = given.folder.absolute()
    there = folder / "digits"
    is_new = not there.exists()
    if is_new:
        make(folder, there)
    federation = Federation(ServerFolder.find(there), folder / "kills.jsonl")
    try:
        federation.begin(is_new)
        end = time.monotonic() + given.seconds
        for number, (what, moment) in list(enumerate(plan(given.seed)))[given.first :][: given.kills]:
            if number not in federation.done and time.monotonic() < end:
                federation.survive(number, what, moment, random.Random(f"{given.seed} {number}"))
        steps = federation.finish()
    finally:
        federation.stop()
    simulated = folder / "simulation"
    shutil.rmtree(simulated, ignore_errors=True)
    fedlightning("fit", *CONFIGS, f"--trainer.max_steps={steps}", *table_in(simulated))
    compare(simulated, there)
    table(federation.outcomes)


def plan(seed: int) -> list[tuple[str, str]]:
    """Return the kills in a random order."""
    return random.Random(seed).sample(KILLS, len(KILLS))


def make(folder: Path, there: Path) -> None:
    """Make the federation's folders, with ports of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    nodes = [f"{name}={clients}" for name, clients in NODES.items()]
    fedlightning("federation", "new", there, f"--address=127.0.0.1:{free_port()}", "--nodes", *nodes, *CONFIGS)
    for name in NODES:
        file = there / "nodes" / name / "node.yaml"
        write_node_config(replace(read_node_config(file), port=free_port()), file)


class Federation:
    """A federation on this machine whose parts are killed.

    Attributes:
        outcomes: Of the kills so far.
    """

    def __init__(self, server: ServerFolder, file: Path) -> None:
        self._server, self._file = server, file
        self._homes = {name: server.path.parent / "nodes" / name for name in NODES}
        self._services: list[Service] = []
        lines = file.read_text().splitlines() if file.exists() else []
        self.outcomes = [Outcome(**json.loads(line)) for line in lines]

    @property
    def done(self) -> set[int]:
        """Numbers of the kills that were survived."""
        return {each.number for each in self.outcomes}

    def begin(self, is_new: bool) -> None:
        """Start link, nodes and run."""
        listen = self._server.federation.listen
        link = command("federation", "link", self._server.path)
        self._services.append(Service("link", self._file.with_name("link.log"), link))
        self._until(lambda: is_taken(listen.host, listen.port))
        fedlightning("federation", "register", self._server.path)
        for name, home in self._homes.items():
            start = command("node", "start", "--config", home / "node.yaml")
            self._services.append(Service(name, home / "log", start))
        if is_new:
            run(self._server)
        else:
            self._go_on()
        self._wait_for(rounds(self._server) + 2)

    def survive(self, number: int, what: str, moment: str, draw: random.Random) -> None:
        """Kill something, wait until two more rounds are done, and note how it went."""
        service = self._services[0 if what in ("server", "link") else 1 + draw.randrange(len(NODES))]
        strike = self._strike(service, what)
        if moment == "random":
            self._until(_after(draw.uniform(0, LONGEST)))
        elif not self._watch(service, moment):
            moment = "random"
        finished, began = rounds(self._server), time.monotonic()
        strike()
        unfinished = any(self._partial(folder) for folder in self._folders(service, moment))
        say(f"{number}: kill -9 {what} ({service.name}), {moment}, after round {finished}")
        repeated = 0
        if what in ("server", "link"):
            repeated = finished - self._go_on()
        self._wait_for(finished + 2)
        seconds = time.monotonic() - began
        outcome = Outcome(number, what, service.name, moment, unfinished, finished, repeated, round(seconds, 1))
        self.outcomes.append(outcome)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")

    def finish(self) -> int:
        """Go on until three more rounds are done, and return how many rounds there were."""
        steps = rounds(self._server) + 3
        fedlightning("federation", "stop", self._server.path, check=False)
        run(self._server, "--ckpt_path=last", f"--trainer.max_steps={steps}")
        self._wait_for(steps)
        self._until(lambda: torch.load(last(self._server.runs), weights_only=True)["global_step"] == steps)
        return steps

    def stop(self) -> None:
        """End all services."""
        for service in reversed(self._services):
            service.stop()

    def _strike(self, service: Service, what: str) -> Callable[[], None]:
        """Return what kills, with no time lost in looking for the process."""
        if what not in PROGRAMS:
            return service.kill
        found: list[int] = []

        def is_there() -> bool:
            try:
                found.append(service.program(PROGRAMS[what]))
            except LookupError:
                return False
            return True

        self._until(is_there)
        return lambda: os.kill(found[0], 9)

    def _go_on(self) -> int:
        """Resume the server from the last checkpoint, and return the round of that."""
        listen = self._server.federation.listen
        self._until(lambda: is_taken(listen.host, listen.port))
        step = int(torch.load(last(self._server.runs), weights_only=True)["global_step"])
        for attempt in range(5):
            try:
                go_on(self._server)
                break
            except subprocess.CalledProcessError:
                if attempt == 4:
                    raise
                self._until(_after(5.0))
        return step

    def _watch(self, service: Service, moment: str) -> bool:
        """Return true as soon as a file is written or an answer uploaded, or false after a minute."""
        folders, end = self._folders(service, moment), time.monotonic() + 60
        if moment == "in an upload":
            return _is_said("Sending: train message", service.log, end)
        before = {name for folder in folders for name in _names(folder)}
        while time.monotonic() < end:
            for folder in folders:
                if moment == "after a write":
                    if any(name.endswith(".pt") and name not in before for name in _names(folder)):
                        return True
                elif self._partial(folder):
                    return True
        return False

    def _folders(self, service: Service, moment: str) -> list[Path]:
        """Return the folders of the states, or of the checkpoints, that a service has to do with."""
        if moment == "in a checkpoint":
            return [last(self._server.runs).parent]
        homes = [self._homes[service.name]] if service.name in self._homes else self._homes.values()
        return [folder for home in homes for folder in home.glob("states/*/client-*")]

    def _partial(self, folder: Path) -> bool:
        return any(".partial-" in name for name in _names(folder))

    def _wait_for(self, finished: int) -> None:
        self._until(lambda: rounds(self._server) >= finished)

    def _until(self, condition: Callable[[], bool]) -> None:
        until(condition, self._services, PATIENCE)


def _is_said(text: str, log: Path, end: float) -> bool:
    """Return true as soon as something is said in a log."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        lines.seek(0, os.SEEK_END)
        while time.monotonic() < end:
            if text in lines.readline():
                return True
    return False


def _names(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in entries)


def _after(seconds: float) -> Callable[[], bool]:
    """Return whether a time has passed."""
    end = time.monotonic() + seconds
    return lambda: time.monotonic() >= end


def compare(simulation: Path, federation: Path) -> None:
    """Compare losses of all rounds, parameters and clients' states; differences end the program with an error.

    Nor may a client's state be found anywhere on the server's disk.
    """
    here = torch.load(last(simulation), weights_only=True)
    there = torch.load(last(federation / "server" / "runs"), weights_only=True)
    steps, losses, other = here["global_step"], losses_in(simulation), losses_in(federation / "server" / "runs")
    rows, own = here["federation"]["clients"], states(federation, there["federation"]["nodes"])
    variates = rows["rows"]["state.c"]
    differences = {
        "rounds": abs(steps - there["global_step"]) + abs(steps - len(losses)),
        "loss of a round": max(abs(losses[step] - other[step]) for step in losses),
        "parameter": max(_distance(value, there["state_dict"][name]) for name, value in here["state_dict"].items()),
        "places of a control variate at the server": left_behind(federation)["state.c"][1],
        "control variate": max(_distance(variates[n], own[client]) for n, client in enumerate(rows["ids"].tolist())),
    }
    print(f"{steps} rounds; largest difference of the federation from its simulation: {differences}")
    if any(differences.values()):
        sys.exit("The federation did not end where the simulation does.")


def states(federation: Path, nodes: Mapping[str, Any]) -> dict[int, torch.Tensor]:
    """Return the control variate of every client, from the file at its node that the server's checkpoint names."""
    found = {}
    for client, generation in nodes["accepted"].items():
        (file,) = federation.glob(f"nodes/*/states/{nodes['federation']}/client-{client}/{generation}.pt")
        found[client] = torch.load(file, weights_only=True)["states"]["state.c"]
    return found


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max())


def table(outcomes: Sequence[Outcome]) -> None:
    """Print what became of the kills, a line for each kind and moment."""
    print("| killed | moment | times | unfinished file left | rounds repeated | seconds until two more rounds |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    for kind in dict.fromkeys((each.what, each.moment) for each in sorted(outcomes, key=_place)):
        own = [each for each in outcomes if _place(each) == kind]
        left = sum(each.unfinished for each in own) if kind in WRITERS else "-"
        repeated, seconds = [each.repeated for each in own], sorted(each.seconds for each in own)
        median = statistics.median(seconds)
        print(
            f"| {kind[0]} | {kind[1]} | {len(own)} | {left} | {min(repeated)} to {max(repeated)} | "
            f"{median:.0f} ({seconds[0]:.0f} to {seconds[-1]:.0f}) |"
        )


def _place(outcome: Outcome) -> tuple[str, str]:
    return outcome.what, outcome.moment


if __name__ == "__main__":
    main()
