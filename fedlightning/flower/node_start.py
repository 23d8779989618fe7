"""A node: its worker, the process that forks for messages, and Flower's, which keeps in touch with the link."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from sysconfig import get_path

from fedlightning.core.errors import MissingFileError
from fedlightning.flower.build_attempts import BuildAttempts
from fedlightning.flower.commands import write_commands
from fedlightning.flower.log_lines import begin_log
from fedlightning.flower.node_app import WORKER
from fedlightning.flower.node_config import NodeConfig, read_node_config
from fedlightning.flower.short_folder import short_folder
from fedlightning.flower.supervisor import REFUSED, Service, Supervisor

_LOG = logging.getLogger(__name__)
_ADVICE = (
    "If the link refused the node ([2004] above), the node's key is not registered there, or the link takes an earlier "
    "process of the node to be online still, for up to a minute. If the certificate was not verified, "
    "root_certificates is not of the authority that signed the link's."
)
_OF_WORKER = (
    "If 'Timeout' stands above, the worker was at one message for longer than longest_answer in node.yaml allows; the "
    "lines after it say where."
)


class Node:
    """Runs the processes of a node.

    Attributes:
        flower: The command line of Flower's process.
        settings: Environment variables of Flower's process: it calls nobody but the link.
        environment: Its whole environment, with commands of this package first in ``PATH``.
    """

    def __init__(self, config: NodeConfig, config_file: Path, folder: Path) -> None:
        """Say which processes make up a node; nothing is started yet.

        Args:
            config: The node's config.
            config_file: Its file.
            folder: Folder for sockets and commands, of the owner alone.

        Raises:
            MissingFileError: If Flower's command is not there.
        """
        self._worker, self._apps = folder / "worker", folder / "apps"
        commands = folder / "commands"
        write_commands(commands, self._apps)
        program = Path(get_path("scripts"), "flower-supernode")
        if not program.is_file():
            raise MissingFileError(
                f"{program}: no such command, though Flower is installed for {sys.executable}. Reinstall it."
            )
        self.flower = [
            str(program),
            *("--superlink", config.superlink),
            *("--root-certificates", str(config.certificates_file)),
            *("--auth-supernode-private-key", str(config.key_file)),
            *("--host", "127.0.0.1"),
            *("--port", str(config.port)),
        ]
        self.settings = {
            "FLWR_HOME": str(folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }
        path = os.pathsep.join([str(commands), get_path("scripts"), os.environ.get("PATH", os.defpath)])
        self.environment = {**os.environ, **self.settings, WORKER: str(self._worker), "PATH": path}
        python = (sys.executable, "-m")
        self._first = [
            Service(
                "worker",
                [*python, "fedlightning.flower.worker", str(config_file), str(self._worker)],
                hopeless=(REFUSED,),
                advice=_OF_WORKER,
            ),
            Service(
                "apps",
                [*python, "fedlightning.flower.app_processes", str(self._apps)],
                self.environment,
                longest_pause=2.0,
            ),
        ]
        self._flower = Service("flower-supernode", self.flower, self.environment, advice=_ADVICE)

    def run(self, supervisor: Supervisor, ready: Callable[[], None] = lambda: None) -> None:
        """Start the processes, and start them again as they end, until the supervisor is stopped.

        Args:
            supervisor: Watches the processes, and ends them at last.
            ready: Called when the worker has opened data and states, before the node turns to the link.
        """
        try:
            for service in self._first:
                supervisor.start(service)
            if supervisor.watch(until=lambda: self._worker.exists() and self._apps.exists()):
                ready()
                supervisor.start(self._flower)
                supervisor.watch()
        finally:
            supervisor.end()


def start(config_file: str) -> None:
    """Run a node until SIGTERM or SIGINT.

    Args:
        config_file: Its ``node.yaml``.

    Raises:
        FedlightningError: If the config, the key or the certificate cannot be used.
        SystemExit: If the worker cannot work as the config says.
    """
    file = Path(config_file).expanduser().absolute()
    config = read_node_config(file)
    config.require_credentials()
    begin_log("node")
    BuildAttempts(config.states_folder).forget()  # somebody has looked after the node
    supervisor = Supervisor()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.stop())
    with short_folder() as folder:
        node = Node(config, file, folder)
        words = [f"{name}={shlex.quote(value)}" for name, value in node.settings.items()]
        command = shlex.join([Path(node.flower[0]).name, *node.flower[1:]])
        print(f"$ {' '.join(words)} {command}", flush=True)
        node.run(supervisor, ready=lambda: _LOG.info("Node %s turns to the link at %s", config.name, config.superlink))
    _LOG.info("Node %s has ended", config.name)
    if supervisor.status:
        raise SystemExit(1)
