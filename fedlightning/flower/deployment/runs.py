"""Runs of a federation: submitted, followed, stopped, and resumed from a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedlightning.core.errors import MissingFileError, UsageError
from fedlightning.flower.deployment.app_folder import CHANGES, CHECKPOINT, FOLDER
from fedlightning.flower.deployment.files import PRIVATE, replace
from fedlightning.flower.deployment.flower_commands import FlowerCommands
from fedlightning.flower.deployment.registration import Registration

_NO_DETAILS = "N/A"


@dataclass(frozen=True)
class Run:
    """Describes a run as Flower knows it.

    Attributes:
        number: Flower's number of it.
        status: ``pending``, ``starting``, ``running``, or ``finished:`` with ``completed``, ``failed`` or ``stopped``.
        details: What Flower adds, perhaps nothing.
        seconds: Since it was started, or until it was finished.
    """

    number: str
    status: str
    details: str
    seconds: float

    @property
    def is_over(self) -> bool:
        """Return whether it has ended in any way."""
        return self.status.startswith("finished")

    @property
    def is_complete(self) -> bool:
        """Return whether it has ended well."""
        return self.status == "finished:completed"

    def __str__(self) -> str:
        details = f", {self.details}" if self.details else ""
        return f"run {self.number}: {self.status}{details}, {self.seconds:.0f} s"


class Runs:
    """Steers the runs of a federation, one at a time: nodes go on from the states of one run."""

    def __init__(self, flower: FlowerCommands) -> None:
        """Take Flower's commands for a federation."""
        self._flower = flower
        self._server = flower.server

    def all(self) -> list[Run]:
        """Return the runs that the link remembers, the latest first."""
        return [_run(each) for each in self._flower.ask("ls")["runs"]]

    def latest(self) -> Run:
        """Return the latest run.

        Raises:
            UsageError: If there is none.
        """
        if not (runs := self.all()):
            raise UsageError(f"There is no run yet. Start one by fedlightning federation run {self._server.path}.")
        return runs[0]

    def get(self, number: str) -> Run:
        """Return a run by its number."""
        return _run(self._flower.ask("ls", "--run-id", number)["runs"][0])

    def submit(self, changes: Sequence[str] = (), checkpoint: str | None = None) -> str:
        """Submit a run, and return its number.

        Args:
            changes: Options that change its config, such as ``--trainer.max_steps=20``.
            checkpoint: What to resume from; ``last`` for the latest checkpoint of this federation.

        Raises:
            UsageError: If a run is under way, or no node is registered.
            FileNotFoundError: If there is no such checkpoint.
        """
        resumed = "" if checkpoint is None else str(self._found(checkpoint))
        self._flower.require_link()
        if not Registration(self._flower).ids:
            raise UsageError(
                "The link lets no node in yet: no key is registered. Register all by fedlightning federation register "
                f"{self._server.path}."
            )
        if (running := next((run for run in self.all() if not run.is_over), None)) is not None:
            raise UsageError(
                f"There is a {running}. A node serves one run at a time: see it by fedlightning federation watch "
                f"{self._server.path}, or end it by fedlightning federation stop {self._server.path}."
            )
        values = {FOLDER: str(self._server.path), CHECKPOINT: resumed, CHANGES: json.dumps(list(changes))}
        file = self._server.link / "run.toml"
        text = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in values.items())
        replace(file, text, PRIVATE)
        self._progress_file.unlink(missing_ok=True)  # of the run before
        answer = self._flower.ask("run", str(self._server.app), "--run-config", str(file))
        return str(answer["run-id"])

    def follow(self, number: str) -> Run:
        """Show the log of a run until it ends, and return how it ended."""
        self._flower.follow(number)
        return self.get(number)

    def stop(self) -> Run:
        """Stop the run under way, and return it.

        Raises:
            UsageError: If none is under way.
        """
        latest = self.latest()
        if latest.is_over:
            raise UsageError(f"Nothing is to be stopped: the latest is {latest}.")
        self._flower.ask("stop", latest.number)
        return self.get(latest.number)

    def progress(self) -> dict[str, Any] | None:
        """Return what the latest run said of its last round; None before the first round."""
        if not self._progress_file.exists():
            return None
        content: dict[str, Any] = json.loads(self._progress_file.read_text())
        return content

    @property
    def has_checkpoint(self) -> bool:
        """Return whether a run has left a checkpoint to go on from."""
        return bool(self._checkpoints())

    @property
    def _progress_file(self) -> Path:
        return self._server.runs / "progress.json"

    def _checkpoints(self) -> list[Path]:
        """Return the last checkpoints of all runs, the newest at the end."""
        return sorted(self._server.runs.glob("**/last*.ckpt"), key=lambda path: path.stat().st_mtime)

    def _found(self, checkpoint: str) -> Path:
        if checkpoint == "last":
            found = self._checkpoints()
            if not found:
                raise MissingFileError(
                    f"--ckpt_path=last: no checkpoint is in {self._server.runs}, as no run got far enough. Start anew, "
                    "without --ckpt_path."
                )
            return found[-1]
        path = Path(checkpoint).expanduser().absolute()
        if not path.is_file():
            raise MissingFileError(f"--ckpt_path={checkpoint}: no such file. --ckpt_path=last finds the latest.")
        return path


def _run(answer: Any) -> Run:
    details = str(answer["status-details"])
    return Run(
        str(answer["run-id"]),
        str(answer["status"]),
        "" if details == _NO_DETAILS else details,
        float(answer["elapsed"]),
    )
