"""Runs of a federation's server: the command line of simulations, with clients at nodes in place of data."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.cli import LightningArgumentParser

from fedlightning.callbacks import LastCheckpoint
from fedlightning.cli.app import FederatedCLI
from fedlightning.core.errors import UsageError
from fedlightning.core.strict_yaml import parsed
from fedlightning.data.remote import RemoteClients
from fedlightning.federation.remote.carrier import Carrier
from fedlightning.federation.remote.checks import AnswerChecks
from fedlightning.federation.remote.run_config import LocalWork, RunConfig
from fedlightning.federation.remote.silence import Silence
from fedlightning.federation.simulation import Connect
from fedlightning.federation.transport.remote import Deadlines, Remote


class ServerCLI(FederatedCLI):
    """Runs ``fit`` with clients at nodes.

    A run's config has the sections ``model``, ``trainer`` and ``seed_everything`` of a simulation, and four of its own:
    ``data`` (arguments of :class:`~fedlightning.data.remote.RemoteClients`), ``work``, ``deadlines``, ``checks`` and
    ``silence``.
    """

    data_class = RemoteClients
    data_by_class_path = False

    def __init__(self, carrier: Carrier, args: Sequence[str], **trainer_defaults: Any) -> None:
        """Parse the arguments and carry out the subcommand.

        Args:
            carrier: Reaches the nodes.
            args: As on the command line, ``fit`` first.
            trainer_defaults: Defaults of ``Trainer`` arguments.
        """
        self._carrier = carrier
        super().__init__(args, **trainer_defaults)

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return what a server does: it fits."""
        return {"fit": FederatedCLI.subcommands()["fit"]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the sections that simulations do not have."""
        super().add_arguments_to_parser(parser)
        parser.add_class_arguments(LocalWork, "work")
        parser.add_class_arguments(Deadlines, "deadlines")
        parser.add_class_arguments(AnswerChecks, "checks")
        parser.add_class_arguments(Silence, "silence")

    def before_fit(self) -> None:
        """Have the task reach its clients at the nodes, which are told of the run first."""
        made, carrier = self.config_init["fit"], self._carrier
        num_clients, run = made["data"].num_clients, self.description().to_text()

        def connect(simulation: Any) -> Remote:
            return Remote(carrier, simulation, num_clients, made.deadlines, made.checks, made.silence, run)

        connected: Connect = connect
        self.model.run.connect = connected

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        """Save after every round, unless configured otherwise: rounds take seconds, and runs are stopped by signals."""
        given = config.get("callbacks") or []
        chosen = [*(given if isinstance(given, list) else [given]), *callbacks]
        if config.get("enable_checkpointing") is not False and not any(isinstance(c, LastCheckpoint) for c in chosen):
            callbacks = [*callbacks, LastCheckpoint(every_n_seconds=0.0)]
        return super()._instantiate_trainer(config, callbacks)

    def description(self) -> RunConfig:
        """Return what nodes are told of the run."""
        text = self._parser("fit").dump(self.config["fit"], skip_none=False)
        config = parsed(text)
        return RunConfig(
            config["model"], self.datamodule.seed, str(self.trainer.precision), self.config_init["fit"].work
        )


def run_server(
    carrier: Carrier, config: Path, num_clients: int, runs: Path, checkpoint: str = "", changes: Sequence[str] = ()
) -> None:
    """Carry out a run of a federation's server.

    Args:
        carrier: Reaches the nodes.
        config: The run's config; relative paths in it begin in its folder, where modules are found, too.
        num_clients: Number N of clients of the federation.
        runs: Folder of checkpoints and logs.
        checkpoint: What to resume from; empty for a run from the start.
        changes: Options that change the config, such as ``--trainer.max_steps=20``.

    Raises:
        UsageError: If the config cannot be used; standard error says why.
    """
    os.chdir(config.parent)
    if str(config.parent) not in sys.path:
        sys.path.append(str(config.parent))
    resume = [f"--ckpt_path={checkpoint}"] if checkpoint else []
    args = ["fit", f"--data.num_clients={num_clients}", f"--config={config}", *changes, *resume]
    given, sys.argv = sys.argv, sys.argv[:1]  # Flower's arguments, with a token in them that Lightning would print
    try:
        ServerCLI(carrier, args, default_root_dir=str(runs))
    except SystemExit as end:  # Flower would take it for the end of its process
        if end.code not in (0, None):
            why = end.code if isinstance(end.code, str) else "see above"
            raise UsageError(f"The run of {config} was not carried out: {why}") from None
    finally:
        sys.argv = given
