"""Flower's own commands, called as a user would call them, and shown."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from sysconfig import get_path
from typing import Any

from fedlightning.core.errors import MissingFileError, UsageError
from fedlightning.flower.deployment.files import replace
from fedlightning.flower.deployment.server_folder import ServerFolder

LINK = "federation"
"""Name of the link in the configuration of Flower's commands."""

_SECONDS = 120.0


class FlowerError(UsageError):
    """A command of Flower's was refused or failed; the message is Flower's."""


class FlowerCommands:
    """Calls Flower's commands for one federation.

    Attributes:
        server: The server's folder, with all that the commands need.
    """

    def __init__(self, server: ServerFolder, show: Callable[[str], None] | None = None) -> None:
        """Take the folder of a server.

        Args:
            server: The folder.
            show: Is given every command line before it is carried out; None to show none.
        """
        self.server = server
        self._show = show

    @property
    def settings(self) -> dict[str, str]:
        """The environment variables that make Flower's commands use this folder, and call nobody but the link."""
        return {
            "FLWR_HOME": str(self.server.link),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The environment of Flower's commands, which find each other, and this Python, through ``PATH``."""
        path = os.pathsep.join([get_path("scripts"), os.environ.get("PATH", os.defpath)])
        return {**os.environ, **self.settings, "PATH": path}

    def link(self) -> list[str]:
        """Return the command line of the link: TLS and known nodes alone, and nothing is installed at run time."""
        server, listen = self.server, self.server.federation.listen
        return [
            program("flower-superlink"),
            *("--ssl-ca-certfile", str(server.authority)),
            *("--ssl-certfile", str(server.certificate)),
            *("--ssl-keyfile", str(server.key)),
            "--enable-supernode-auth",
            *("--database", str(server.link / "state.db")),
            *("--host", listen.host),
            *("--port", str(listen.port)),
            "--disable-runtime-dependency-installation",
        ]

    def show(self, command: list[str]) -> None:
        """Show a command line with the settings that belong to it."""
        if self._show is not None:
            words = [f"{name}={shlex.quote(value)}" for name, value in self.settings.items()]
            self._show(" ".join([*words, shlex.join([Path(command[0]).name, *command[1:]])]))

    def ask(self, *arguments: str) -> Mapping[str, Any]:
        """Carry out a command of ``flwr``, and return what it answers in JSON.

        Args:
            arguments: Without the name of the link's configuration: it comes last, before ``--format``.

        Raises:
            FlowerError: If Flower refuses it or does not answer.
            UsageError: If the link is not running.
        """
        command = self._flwr(*arguments, "--format", "json")
        try:
            done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            raise FlowerError(f"flwr {' '.join(arguments[:2])}: no answer within {_SECONDS:.0f} seconds.") from None
        answer = _json(done.stdout)
        if done.returncode or not answer.get("success"):
            raise FlowerError(f"flwr {' '.join(arguments[:2])}: {_reason(answer, done.stdout, done.stderr)}")
        return answer

    def follow(self, run_id: str) -> None:
        """Show the log of a run until it ends.

        Raises:
            FlowerError: If Flower refuses it, or the link ends.
        """
        command = self._flwr("log", run_id, "--stream")
        done = subprocess.run(command, env=self.environment, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            raise FlowerError(f"flwr log: {_reason({}, '', done.stderr)}")

    def require_link(self) -> None:
        """Make sure that the link is running.

        Raises:
            UsageError: If nothing listens at its address.
        """
        listen = self.server.federation.listen
        if not is_taken(listen.host, listen.port):
            raise UsageError(
                f"The link is not running: nothing listens on {listen}. Start it by fedlightning federation link "
                f"{self.server.path}, or its service in {self.server.services}."
            )

    def _flwr(self, *arguments: str) -> list[str]:
        self.require_link()
        self._configure()
        options = next((n for n, word in enumerate(arguments) if word.startswith("--")), len(arguments))
        command = [program("flwr"), *arguments[:options], LINK, *arguments[options:]]
        self.show(command)
        return command

    def _configure(self) -> None:
        """Tell Flower's commands where the link is, with absolute paths, as the folder may have been moved."""
        text = (
            f'[superlink]\ndefault = "{LINK}"\n\n[superlink.{LINK}]\n'
            f'address = "{self.server.federation.listen}"\n'
            f"root-certificates = {json.dumps(str(self.server.authority), ensure_ascii=False)}\n"
        )
        file = self.server.link / "config.toml"
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            replace(file, text)


def program(name: str) -> str:
    """Return the path of a command of Flower's, in the environment of this Python.

    Raises:
        FileNotFoundError: If it is not there.
    """
    path = Path(get_path("scripts"), name)
    if not path.is_file():
        raise MissingFileError(
            f"{path}: no such command, though Flower is installed for {sys.executable}. Reinstall it."
        )
    return str(path)


def is_taken(host: str, port: int) -> bool:
    """Return whether something listens on a port."""
    try:
        with socket.create_connection((host, port), timeout=5.0):
            return True
    except OSError:
        return False


def _json(text: str) -> Mapping[str, Any]:
    """Return the JSON object in what a command printed, which may say other things before it."""
    for start, character in enumerate(text):
        if character == "{":
            try:
                found, _ = json.JSONDecoder().raw_decode(text[start:])
            except json.JSONDecodeError:
                continue
            return found if isinstance(found, Mapping) else {}
    return {}


def _reason(answer: Mapping[str, Any], *printed: str) -> str:
    """Return why a command failed, in one line, without what it said it would do."""
    said = [line.strip() for line in str(answer.get("error-message") or "").splitlines()]
    if said := [line for line in said if line and not line.startswith("Using SuperLink") and not line.endswith("...")]:
        return " ".join(said)
    lines = [line.strip(" │") for text in printed for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("╭", "╰"))]
    return lines[-1].removeprefix("Error: ") if lines else "it failed and gives no reason."
