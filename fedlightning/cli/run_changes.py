"""Options of ``fedlightning federation run`` that change the run's config, checked before anything is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from fedlightning.cli import sources
from fedlightning.cli.complaints import no_argument
from fedlightning.cli.early import MistakeError, Options
from fedlightning.core.strict_yaml import read_mapping

_ITS_OWN = {
    "data": "fedlightning.data.remote.RemoteClients",
    "work": "fedlightning.federation.remote.run_config.LocalWork",
    "deadlines": "fedlightning.federation.transport.remote.Deadlines",
    "checks": "fedlightning.federation.remote.checks.AnswerChecks",
    "silence": "fedlightning.federation.remote.silence.Silence",
}
"""Sections of a federation's run that a simulation has not, or has with another class."""
_FIXED = {
    "data.num_clients": "federation.yaml says which clients there are",
    "data.init_args.num_clients": "federation.yaml says which clients there are",
    "trainer.default_root_dir": "status and --ckpt_path=last look for runs in the server's folder",
}
"""Options that no run may change, and why."""
_OF_A_SIMULATION = ("model", "trainer", "seed_everything")


def is_change(argument: str) -> bool:
    """Return whether an argument changes the run's config: ``--trainer.max_steps=20``, not ``--detach``."""
    head = argument.lstrip("-").partition("=")[0].partition(".")[0]
    return argument.startswith("--") and head in (*_ITS_OWN, *_OF_A_SIMULATION)


def require_changes(folder: Path, changes: Sequence[str]) -> None:
    """Check changes of a run against its config.

    Args:
        folder: The federation's folder or the server's; where it has no config, nothing is checked here.
        changes: Each ``--key=value``.

    Raises:
        MistakeError: If an option is misspelt, unknown to its class, fixed, or has no value.
    """
    file = next((path for path in (folder / "run.yaml", folder / "server" / "run.yaml") if path.is_file()), None)
    options = Options("fit")
    config = {} if file is None else read_mapping(file, "the config of a run")
    for key in _OF_A_SIMULATION:
        if key in config:
            options.set(key, config[key])
    for change in changes:
        name, equals, text = change.lstrip("-").partition("=")
        head, _, rest = name.partition(".")
        if not equals:
            raise MistakeError(f"{change}: there is no value. Expected {change}=...")
        if name in _FIXED:
            raise MistakeError(f"{change}: it cannot be changed for a run, because {_FIXED[name]}. Leave it out.")
        if head in _ITS_OWN:
            _require_argument(change, head, rest.removeprefix("init_args."), text)
        elif file is not None:
            options.require(change, name)
            options.set(name, yaml.safe_load(text))


def _require_argument(change: str, section: str, name: str, value: str) -> None:
    known = _arguments(section)
    if name.partition(".")[0] in known:
        return
    if section == "data" and name in _arguments("work"):
        raise MistakeError(
            f"{change}: minibatches are drawn at the nodes. Set it for all of them: --work.{name}={value}."
        )
    raise MistakeError(no_argument(change, _ITS_OWN[section].rpartition(".")[2], name, known))


def _arguments(section: str) -> list[str]:
    """Return the arguments of a section of a federation's run."""
    found = sources.find(_ITS_OWN[section])
    return [] if found is None else sources.arguments(found) or []
