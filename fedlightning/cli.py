"""The command ``fedlightning``: Lightning's command line for federated tasks, and ``fedlightning compare``."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from linecache import getline
from pathlib import Path
from traceback import walk_tb
from typing import Any

from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from fedlightning.callbacks import LastCheckpoint, LogPictures, RoundProgressBar
from fedlightning.checkpoint_io import AtomicCheckpointIO
from fedlightning.data.module import FederatedDataModule
from fedlightning.module import FederatedLightningModule
from fedlightning.parser import TaskParser, plain

_DESCRIPTION = """Federated optimisation inside PyTorch Lightning.

fedlightning fit|validate|test|predict   run one task, from YAML configs and command-line values
fedlightning compare                     run several algorithms and seeds, table and figure
"""


class FederatedCLI(LightningCLI):
    """``LightningCLI`` with tasks and federated data by class path, atomic checkpoints, and one seed for all."""

    def __init__(self, args: Sequence[str] | None = None, run: bool = True, **trainer_defaults: Any) -> None:
        """Parse and, if ``run``, carry out the subcommand.

        Args:
            args: Arguments; None for those of the process.
            run: Whether there is a subcommand to carry out.
            trainer_defaults: Defaults of ``Trainer`` arguments.
        """
        given = sys.argv[1:] if args is None else list(args)
        if any(argument.startswith(("--data.init_args.seed", "--data.seed")) for argument in given):
            sys.exit("fedlightning: one seed makes a run, also of the data. Give --seed_everything instead.")
        super().__init__(
            FederatedLightningModule,
            FederatedDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            seed_everything_default=0,
            save_config_kwargs={"overwrite": True},
            trainer_defaults={**_TRAINER_DEFAULTS, **trainer_defaults},
            parser_class=TaskParser,
            parser_kwargs={"description": _DESCRIPTION} if run else None,
            args=None if args is None else list(args),
            run=run,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """One seed for initial weights, partitions, cohorts and minibatches."""
        parser.link_arguments("seed_everything", "data.init_args.seed", compute_fn=_seed)

    def instantiate_classes(self) -> None:
        """What one of our constructors objects to becomes one line; others' errors lose the parser's dumps only."""
        try:
            super().instantiate_classes()
        except Exception as error:
            origin: BaseException = error
            while not _is_refusal(origin):
                within = origin.__cause__ or (None if origin.__suppress_context__ else origin.__context__)
                if within is None:
                    break
                origin = within
            if not _is_refusal(origin) and not _raised_in(origin, "jsonargparse"):
                raise origin from None
            print(f"fedlightning: {plain(str(error))}", file=sys.stderr)
            raise SystemExit(2) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Show rounds, log pictures and save checkpoints atomically, unless told otherwise."""
        trainer = super().instantiate_trainer(**kwargs)
        callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(callback, LogPictures) for callback in callbacks):
            callbacks.append(LogPictures())
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        given = config.get("callbacks") or []
        given = [*(given if isinstance(given, list) else [given]), *callbacks]
        if config.get("enable_progress_bar") is not False and not any(isinstance(c, ProgressBar) for c in given):
            callbacks = [*callbacks, RoundProgressBar()]
        if config.get("enable_checkpointing") is not False and not any(isinstance(c, LastCheckpoint) for c in given):
            callbacks = [*callbacks, LastCheckpoint()]
        return super()._instantiate_trainer(config, callbacks)

    def _parse_ckpt_path(self) -> None:
        """Say early if there is no such checkpoint; values of the command line win over those stored in it."""
        subcommand = self.config.get("subcommand")
        path = subcommand and self.config[subcommand].get("ckpt_path")
        if not path or path in _CHECKPOINTS_BY_NAME or path.startswith("registry") or "://" in path:
            return
        if not Path(path).exists():
            folder = next(folder for folder in Path(path).absolute().parents if folder.is_dir())
            near = next((f" There is {found}." for found in sorted(folder.glob("**/last.ckpt"))), "")
            print(f"fedlightning: --ckpt_path={path}: no such file.{near}", file=sys.stderr)
            raise SystemExit(2)


def _seed(given: bool | int) -> int:
    """Lightning's reading of ``true``: the default seed."""
    return 0 if isinstance(given, bool) else given


_CHECKPOINTS_BY_NAME = ("best", "last", "hpc")  # found by Lightning

_TRAINER_DEFAULTS: dict[str, Any] = {
    "log_every_n_steps": 1,
    "logger": {
        "class_path": "lightning.pytorch.loggers.TensorBoardLogger",
        "init_args": {"save_dir": "runs", "name": "", "default_hp_metric": False},
    },
}


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        args: Arguments; None for those of the process.
    """
    given = sys.argv[1:] if args is None else list(args)
    with plain_refusals():
        if given[:1] == ["compare"]:
            from fedlightning.compare import main as compare

            compare(given[1:])
        else:
            FederatedCLI(args)


@contextmanager
def plain_refusals() -> Iterator[None]:
    """What the library itself objects to ends the process with one sentence; all other errors keep their traceback.

    Raises:
        SystemExit: For errors that a ``raise`` in this package is the origin of, or Lightning's about its arguments.
    """
    try:
        yield
    except Exception as error:
        if not _is_refusal(error):
            raise
        sys.exit(f"fedlightning: {error}")


def _is_refusal(error: BaseException) -> bool:
    """Whether an error is meant for the user: raised by this package, or Lightning's about its arguments."""
    return isinstance(error, MisconfigurationException) or _raised_in(error, __package__)


def _raised_in(error: BaseException, package: str) -> bool:
    """Whether a ``raise`` in the package is where the error comes from."""
    frames = list(walk_tb(error.__traceback__))
    if not frames:
        return False
    innermost, line = frames[-1]
    statement = getline(innermost.f_code.co_filename, line).lstrip()
    return statement.startswith("raise ") and str(innermost.f_globals.get("__name__")).startswith(f"{package}.")
