"""The commands of ``fedlightning federation``: their arguments, and what they call."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlightning.cli.groups import Command
from fedlightning.core.errors import FedlightningError, UsageError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser

    from fedlightning.flower.deployment.flower_commands import FlowerCommands


@dataclass(frozen=True)
class Given:
    """Holds what a command was given.

    Attributes:
        values: Of its arguments, by name.
        changes: Options that change the run's config.
    """

    values: Mapping[str, Any]
    changes: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        """The federation's folder, or the server's in it."""
        return Path(self.values["folder"]).expanduser()

    def flower(self) -> FlowerCommands:
        """Return Flower's commands for the federation, which show what they stand for."""
        from fedlightning.flower.deployment.flower_commands import FlowerCommands
        from fedlightning.flower.deployment.server_folder import ServerFolder

        return FlowerCommands(ServerFolder.find(self.folder), show=lambda line: print(f"$ {line}", flush=True))


def _folder(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=str, help="the federation's folder, or the server's in it")


def _arguments_of_new(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=str, help="folder to make")
    parser.add_argument("--address", type=str, required=True, help="host:port at which nodes reach the link")
    parser.add_argument(
        "--nodes", nargs="+", type=str, required=True, help="nodes with their clients: a=0-3 b=4,5 c=6, numbered from 0"
    )
    parser.add_argument(
        "--config", "-c", action="append", type=str, required=True, help="configs of the simulation, as fit takes them"
    )
    parser.add_argument("--name", type=str, default=None, help="name of the federation; that of the folder by default")
    parser.add_argument(
        "--listen",
        type=str,
        default=None,
        help="where the link listens, on this machine alone; by default at the address itself if that is of this "
        "machine, else at 127.0.0.1:8443 (or 8444), behind the proxy",
    )
    parser.add_argument("--hosts", nargs="+", type=str, default=[], help="further names and IP addresses of the link")
    parser.add_argument(
        "--installed", type=str, default="/opt/fedlightning", help="where nodes have their folder and environment"
    )


def _new(given: Given) -> None:
    from fedlightning.flower.deployment.address import Address
    from fedlightning.flower.deployment.federation_file import Federation, parse_nodes, require_name
    from fedlightning.flower.deployment.new import NewFederation
    from fedlightning.flower.deployment.simulation_config import SimulationConfig

    values = given.values
    address = Address.parse(values["address"], "--address")
    listen = address.of_link() if values["listen"] is None else Address.parse(values["listen"], "--listen")
    name = values["name"] or given.folder.absolute().name
    require_name("--name", name)
    federation = Federation(name, address, listen, parse_nodes(values["nodes"]))
    simulation = SimulationConfig.read(values["config"])
    new = NewFederation(federation, simulation, values["hosts"], Path(values["installed"]))
    server = new.write(given.folder)
    print(f"{server.path}: stays here; its keys are for you alone.")
    for node, clients in federation.nodes.items():
        print(
            f"{server.path.parent / 'nodes' / node}: to be moved to the machine of node {node} over a safe way, as it "
            f"holds a key; then edit 'data' in node.yaml ({len(clients)} of {federation.num_clients} clients)."
        )
    for source in simulation.sources_in(Path.cwd()):
        print(
            f"{source.name}: the config takes classes from it. Install it at server and nodes, or copy it into "
            f"{server.path} and beside every node.yaml."
        )
    if not address.is_of_this_machine:
        print(f"{server.proxy}: configuration of nginx, by which nodes reach the link and nobody gives it orders.")


def _link(given: Given) -> None:
    from fedlightning.flower.deployment.flower_commands import is_taken

    flower = given.flower()
    listen = flower.server.federation.listen
    if is_taken(listen.host, listen.port):
        raise UsageError(f"{listen}: something listens there already, perhaps the link. Stop it, or change 'listen'.")
    command = flower.link()
    flower.show(command)
    sys.stdout.flush()
    os.execve(command[0], command, flower.environment)  # signals go to the link itself


def _arguments_of_register(parser: ArgumentParser) -> None:
    _folder(parser)
    parser.add_argument("--nodes", nargs="+", type=str, default=[], help="names of nodes; all by default")
    parser.add_argument("--remove", action="store_true", help="have the link refuse these from now on")


def _register(given: Given) -> None:
    from fedlightning.flower.deployment.registration import Registration

    flower = given.flower()
    registration, nodes = Registration(flower), given.values["nodes"]
    if given.values["remove"]:
        if not nodes:
            raise UsageError("--remove: which nodes? Name them: --nodes a b.")
        registration.remove(nodes)
        print(f"The link lets in no more: {', '.join(nodes)}")
        return
    for node, is_new in registration.add(nodes).items():
        print(f"node {node}: {'registered' if is_new else 'was registered already'}")


def _arguments_of_renew(parser: ArgumentParser) -> None:
    _folder(parser)
    parser.add_argument("--hosts", nargs="+", type=str, default=[], help="further names and IP addresses of the link")


def _renew(given: Given) -> None:
    from fedlightning.flower.deployment.renewal import renew, validity

    server = given.flower().server
    hosts = renew(server, given.values["hosts"])
    print(f"{server.certificate}: for {', '.join(hosts)}; {validity(server)}. Start link and proxy again to use it.")


def _arguments_of_run(parser: ArgumentParser) -> None:
    _folder(parser)
    parser.add_argument("--ckpt_path", type=str | None, default=None, help="checkpoint to resume from, or last")
    parser.add_argument("--detach", action="store_true", help="leave the run to itself and do not show its log")


def _run(given: Given) -> None:
    from fedlightning.flower.deployment.runs import Runs

    flower = given.flower()
    runs = Runs(flower)
    number = runs.submit(given.changes, given.values["ckpt_path"])
    print(f"run {number}", flush=True)
    if not given.values["detach"]:
        _follow(given, flower, number)


def _watch(given: Given) -> None:
    from fedlightning.flower.deployment.runs import Runs

    flower = given.flower()
    latest = Runs(flower).latest()
    print(latest, flush=True)
    _follow(given, flower, latest.number)


def _follow(given: Given, flower: FlowerCommands, number: str) -> None:
    from fedlightning.flower.deployment.runs import Runs
    from fedlightning.flower.deployment.status import progress_line

    runs = Runs(flower)
    try:
        run = runs.follow(number)
    except KeyboardInterrupt:
        print(f"\nThe run goes on. See it by fedlightning federation watch {given.folder}, end it by ... stop.")
        raise SystemExit(130) from None
    progress = runs.progress()
    if progress is not None:
        print(progress_line(progress))
    print(run)
    if not run.is_complete:
        goes_on = f"fedlightning federation run {given.folder} --ckpt_path last goes on from the latest checkpoint."
        raise FedlightningError(
            f"Run {number} did not get to its end. Its log above says why. "
            f"{goes_on if runs.has_checkpoint else 'There is no checkpoint yet: mend it, and run it anew.'}"
        )


def _stop(given: Given) -> None:
    from fedlightning.flower.deployment.runs import Runs

    print(Runs(given.flower()).stop())


def _status(given: Given) -> None:
    from fedlightning.flower.deployment.status import status_lines

    for line in status_lines(given.flower()):
        print(line)


COMMANDS = {
    "new": Command(
        "Make the folders of server and nodes: certificates, keys, configs, services.", _arguments_of_new, _new
    ),
    "link": Command("Start the link between server and nodes; it goes on until it is stopped.", _folder, _link),
    "register": Command("Have the link let nodes in, or no more.", _arguments_of_register, _register),
    "run": Command("Submit a run, and show its log until it ends.", _arguments_of_run, _run, takes_changes=True),
    "watch": Command("Show the log of the latest run until it ends.", _folder, _watch),
    "stop": Command("Stop the run.", _folder, _stop),
    "renew": Command("Replace the link's certificate, before it ends.", _arguments_of_renew, _renew),
    "status": Command("Say which nodes are online, and how far the run is.", _folder, _status),
}
"""The commands by name."""
