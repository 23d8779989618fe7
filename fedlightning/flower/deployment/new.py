"""Makes the folders of a new federation: one for the server, and one to be copied to each node."""

from __future__ import annotations

import getpass
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from sysconfig import get_path

import yaml

from fedlightning.core.errors import InvalidValueError
from fedlightning.flower.deployment.app_folder import app_toml
from fedlightning.flower.deployment.certificates import make_authority, make_server_certificate
from fedlightning.flower.deployment.federation_file import Federation
from fedlightning.flower.deployment.files import PRIVATE, make_private_folder, write_new
from fedlightning.flower.deployment.node_keys import make_node_key
from fedlightning.flower.deployment.proxy import nginx_config, nginx_file
from fedlightning.flower.deployment.server_folder import ServerFolder
from fedlightning.flower.deployment.services import link_service, node_service
from fedlightning.flower.deployment.simulation_config import SimulationConfig
from fedlightning.flower.node_config import NodeConfig, write_node_config

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Names under which processes of the server's machine reach the link; its certificate has them, too."""
FIRST_PORT = 9500


@dataclass(frozen=True)
class NewFederation:
    """Makes a federation.

    Attributes:
        federation: Who belongs to it.
        simulation: The configs of the simulation that it carries out.
        hosts: Names and IP addresses of the link beside that of its address.
        installed: Where nodes have fedlightning: the folder of the environment, and of the node's folder in it.
    """

    federation: Federation
    simulation: SimulationConfig
    hosts: Sequence[str] = ()
    installed: Path = Path("/opt/fedlightning")

    def write(self, folder: Path) -> ServerFolder:
        """Write all folders, or none if something is wrong.

        Args:
            folder: A folder that is not there yet, or is empty.

        Raises:
            ValueError: If there is something in it, or the configs do not fit the federation.
        """
        folder = folder.expanduser().absolute()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidValueError(
                f"{folder}: it exists. A federation's keys are never overwritten: choose another folder, or move it."
            )
        run = self.simulation.run(self.federation.num_clients)
        folder.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            self._write_server(ServerFolder(beside / "server"), ServerFolder(folder / "server"), run)
            for number, node in enumerate(self.federation.nodes):
                self._write_node(beside, node, FIRST_PORT + number)
            if folder.exists():
                folder.rmdir()
            beside.rename(folder)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return ServerFolder(folder / "server")

    def _write_server(self, server: ServerFolder, later: ServerFolder, run: dict[str, object]) -> None:
        """Write the server's folder; ``later`` is where it lies in the end."""
        it = self.federation
        for path in (server.path, server.link, server.runs):
            make_private_folder(path)
        for path in (server.app, server.services, server.proxy, server.path / "nodes"):
            path.mkdir()
        write_new(server.federation_file, it.to_yaml())
        write_new(server.run_file, _RUN_HEAD + yaml.safe_dump(run, sort_keys=False, allow_unicode=True))
        authority = make_authority(it.name)
        write_new(server.authority, authority.certificate)
        write_new(server.authority_key, authority.key, PRIVATE)
        link = make_server_certificate(authority, (it.address.host, *self.hosts, it.listen.host, *LOCAL))
        write_new(server.certificate, link.certificate)
        write_new(server.key, link.key, PRIVATE)
        write_new(server.app / "pyproject.toml", app_toml(it.name, version("flwr")))
        program = Path(get_path("scripts")) / "fedlightning"
        file, text = link_service(it.name, later.path, getpass.getuser(), program)
        write_new(server.services / file, text)
        if not it.address.is_of_this_machine:
            text = nginx_config(it.name, it.address, it.listen, later.certificate, later.key, later.authority)
            write_new(server.proxy / nginx_file(it.name), text)

    def _write_node(self, folder: Path, node: str, port: int) -> None:
        """Write the folder of a node, and its public key at the server."""
        server, home = ServerFolder(folder / "server"), folder / "nodes" / node
        home.parent.mkdir(exist_ok=True)
        make_private_folder(home)
        key = make_node_key(node)
        write_new(home / "node.key", key.private, PRIVATE)
        write_new(home / "node.pub", key.public)
        write_new(server.public_key(node), key.public)
        shutil.copyfile(server.authority, home / "ca.crt")
        write_node_config(self._node_config(node, port), home / "node.yaml")
        (home / "services").mkdir()
        there = self.installed / f"{self.federation.name}-{node}"
        program = self.installed / "venv" / "bin" / "fedlightning"
        file, text = node_service(self.federation.name, node, there, "fedlightning", program)
        write_new(home / "services" / file, text)

    def _node_config(self, node: str, port: int) -> NodeConfig:
        clients = {client: client for client in self.federation.nodes[node]}  # the simulation's data have all clients
        data = self.simulation.node_data()
        classes = ["fedlightning", *self.simulation.classes]
        return NodeConfig(node, str(self.federation.address), clients, data, classes=classes, port=port)


_RUN_HEAD = """\
# The run of this federation: task, algorithm and trainer as in the simulation. Minibatches (batch size, local steps)
# are the nodes' own and stand in their node.yaml. Values of one run are changed on the command line:
# fedlightning federation run FOLDER --trainer.max_steps=20
# Further sections: work (batch_size, local_steps, local_epochs, for all nodes in place of their own), deadlines (enrol,
# phase, evaluate, in seconds), checks (largest), silence (tolerance).
"""
