"""Lightning's command line for federated tasks."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import yaml
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities import rank_zero_info

from fedlightning import callbacks, data, tasks
from fedlightning.callbacks import LastCheckpoint, LogPictures, RoundProgressBar
from fedlightning.callbacks.history import is_metric
from fedlightning.cli import DESCRIPTIONS
from fedlightning.cli.config_of_run import ConfigOfRun
from fedlightning.cli.default_logger import default_logger, tensorboard_is_installed
from fedlightning.cli.early import MistakeError, asks_for_help, require_checkpoint, require_keeper
from fedlightning.cli.errors import TRACEBACKS, comes_from, is_refusal
from fedlightning.cli.groups import refuse
from fedlightning.cli.nulls import refuse_nulls
from fedlightning.cli.one_seed import require_one_seed
from fedlightning.cli.outputs import trainer_folders, writing_to
from fedlightning.cli.parser import ComparisonParser, plain
from fedlightning.cli.stops import status_of_signals
from fedlightning.cli.wording import remedy
from fedlightning.core.requirements import how_to_install
from fedlightning.data.module import FederatedDataModule
from fedlightning.federation.files.checkpoint_io import AtomicCheckpointIO
from fedlightning.tasks.base import FederatedLightningModule
from fedlightning.tasks.checks.strategies import refuse_sharded_models, refuse_spawned_processes


class TaskParser(ComparisonParser, LightningArgumentParser):
    """Parses the arguments of tasks, data and trainer, and reports errors in a line or two."""

    def add_method_arguments(self, class_type: type, method_name: str, *args: Any, **kwargs: Any) -> list[str]:
        """Add a method's arguments under a short heading, because Lightning would cut off the docstring it shows."""
        before = len(self._action_groups)
        added: list[str] = super().add_method_arguments(class_type, method_name, *args, **kwargs)
        for group in self._action_groups[before:]:
            group.title = f"Arguments of {method_name}"
        return added


@contextmanager
def plain_constructors() -> Iterator[None]:
    """End the process with one line for errors of fedlightning's constructors; other errors lose the parser's dump."""
    try:
        yield
    except Exception as error:
        if os.environ.get(TRACEBACKS):
            raise
        origin: BaseException = error
        while not is_refusal(origin):
            within = origin.__cause__ or (None if origin.__suppress_context__ else origin.__context__)
            if within is None:
                break
            origin = within
        if not is_refusal(origin) and not any(comes_from(origin, each) for each in ("jsonargparse", "lightning")):
            raise origin from None
        print(f"fedlightning: {plain(str(error))}{remedy(str(error))}", file=sys.stderr)
        raise SystemExit(2) from error


class FederatedCLI(LightningCLI):
    """Extends ``LightningCLI`` by tasks and data by class path, atomic checkpoints, and one seed for everything.

    Attributes:
        data_class: What the section ``data`` makes: an object of a class of this kind that it names; or of this class.
        data_by_class_path: Whether the section names a class.
    """

    data_class: ClassVar[type[LightningDataModule]] = FederatedDataModule
    data_by_class_path: ClassVar[bool] = True

    def __init__(self, args: Sequence[str] | None = None, run: bool = True, **trainer_defaults: Any) -> None:
        """Parse the arguments and, if ``run``, carry out the subcommand.

        Args:
            args: Arguments; None for those of the process.
            run: Whether there is a subcommand to carry out.
            trainer_defaults: Defaults of ``Trainer`` arguments.
        """
        given = sys.argv[1:] if args is None else list(args)
        try:
            require_one_seed(given)
        except MistakeError as mistake:
            refuse(str(mistake))
        if any(asks_for_help(argument) for argument in given):
            _import_public_classes()
        subcommands = self.subcommands()
        self._asked = given[0] if given and given[0] in subcommands else None
        super().__init__(
            FederatedLightningModule,
            self.data_class,
            subclass_mode_model=True,
            subclass_mode_data=self.data_by_class_path,
            auto_configure_optimizers=False,
            seed_everything_default=0,
            save_config_callback=ConfigOfRun,
            save_config_kwargs={"save_to_log_dir": False},
            trainer_defaults={"log_every_n_steps": 1, "logger": default_logger(), **trainer_defaults},
            parser_class=TaskParser,
            parser_kwargs={name: {"description": text} for name, text in DESCRIPTIONS.items() if name in subcommands}
            if run
            else None,
            args=None if args is None else list(args),
            run=run,
        )

    def _prepare_subcommand_parser(self, klass: type, subcommand: str, **kwargs: Any) -> LightningArgumentParser:
        """Leave parsers of all other subcommands empty: to build one takes as long as to read a config."""
        if self._asked in (None, subcommand):
            return super()._prepare_subcommand_parser(klass, subcommand, **kwargs)
        return self.init_parser(**kwargs)

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Link one seed to initial weights, partitions, cohorts and minibatches."""
        target = "data.init_args.seed" if self.data_by_class_path else "data.seed"
        parser.link_arguments("seed_everything", target, compute_fn=seed_of)

    def instantiate_classes(self) -> None:
        """Instantiate the classes; errors of fedlightning's constructors become one line, others lose the dump."""
        with plain_constructors():
            refuse_nulls(self.config.get(self.config.get("subcommand"), self.config))
            super().instantiate_classes()

    def _dump_config(self) -> None:
        """Keep the hyper-parameters of task and data as plain values; Lightning would check what was just parsed."""
        if hasattr(self, "config_dump"):
            return
        plain_values = {"skip_link_targets": False, "skip_none": False, "skip_validation": True, "format": "yaml"}
        whole = yaml.load(self.parser.dump(self.config, **plain_values), Loader=_LOADER)
        self.config_dump = whole[self.config.subcommand] if "subcommand" in self.config else whole

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Add callbacks that show rounds, log pictures and save checkpoints atomically, unless configured otherwise."""
        trainer = super().instantiate_trainer(**kwargs)
        chosen: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
        if not any(isinstance(callback, LogPictures) for callback in chosen):
            chosen.append(LogPictures())
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        for table in (logger for logger in trainer.loggers if isinstance(logger, CSVLogger)):
            if not tensorboard_is_installed():
                rank_zero_info(
                    f"TensorBoard is not installed: metrics go to {table.log_dir}/metrics.csv, pictures beside it. "
                    f"{how_to_install('tensorboard')}"
                )
        return trainer

    def _instantiate_trainer(self, config: dict[str, Any], callbacks: list[Callback]) -> Trainer:
        refuse_sharded_models(config.get("strategy"))  # before Lightning advises to install what will not do
        refuse_spawned_processes(config.get("strategy"))  # and before it starts them
        given = config.get("callbacks") or []
        given = [*(given if isinstance(given, list) else [given]), *callbacks]
        if config.get("enable_progress_bar") is not False and not any(isinstance(c, ProgressBar) for c in given):
            callbacks = [*callbacks, RoundProgressBar()]
        if config.get("enable_checkpointing") is not False and not any(isinstance(c, LastCheckpoint) for c in given):
            callbacks = [*callbacks, LastCheckpoint()]
        self._last_validation = _LastValidation()
        callbacks = [*callbacks, self._last_validation]
        return super()._instantiate_trainer(config, callbacks)

    def _run_subcommand(self, subcommand: str) -> None:
        """Carry out a subcommand; outputs that cannot be written become one error, signals the exit status."""
        with status_of_signals(), writing_to(trainer_folders(self.trainer)):
            super()._run_subcommand(subcommand)

    def after_fit(self) -> None:
        """Print the metrics of the last round and validation in one line."""
        metrics = {name: float(value) for name, value in self.trainer.callback_metrics.items() if is_metric(name)}
        if metrics:
            rounds, validated = self.trainer.global_step, self._last_validation.round
            earlier = set() if validated == rounds else self._last_validation.names & metrics.keys()
            said = f"After round {rounds}: {_listed(metrics, metrics.keys() - earlier)}"
            rank_zero_info(f"{said}; of round {validated}: {_listed(metrics, earlier)}" if earlier else said)
        elif self.model.rounds.last is None and self.trainer.global_step:
            rank_zero_info(
                f"Nothing was trained: the checkpoint is of round {self.trainer.global_step}, and the fit ends before. "
                "Set --trainer.max_steps, or --trainer.max_epochs, to more rounds in all."
            )

    def before_validate(self) -> None:
        """Warn if the model was never trained."""
        self._say_if_untrained()

    def before_test(self) -> None:
        """Warn if the model was never trained."""
        self._say_if_untrained()

    def before_predict(self) -> None:
        """Warn if the model was never trained, or if the predictions are not kept."""
        self._say_if_untrained()
        if not any(isinstance(callback, BasePredictionWriter) for callback in self.trainer.callbacks):  # type: ignore[attr-defined]
            rank_zero_info(
                "No callback keeps the predictions: add a BasePredictionWriter with --trainer.callbacks+=module.Writer."
            )

    def _say_if_untrained(self) -> None:
        if self.config[self.config["subcommand"]].get("ckpt_path") is None:
            rank_zero_info("Without --ckpt_path the task is as it starts: nothing has trained it.")

    def _parse_ckpt_path(self) -> None:
        """Check that the checkpoint exists; command-line values override the stored values."""
        subcommand = self.config.get("subcommand")
        path = subcommand and self.config[subcommand].get("ckpt_path")
        try:
            require_checkpoint(path)
            require_keeper(path, bool(subcommand) and _may_keep_last(self.config[subcommand].get("trainer.callbacks")))
        except MistakeError as mistake:
            refuse(str(mistake))


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's loader in C, which reads a configuration ten times as fast, where it is installed."""


class _LastValidation(Callback):
    """Notes after which round a fit has validated last, and the names of what that validation logged."""

    def __init__(self) -> None:
        self.round: int | None = None
        self.names: set[str] = set()
        self._before: set[str] = set()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._before = set(trainer.callback_metrics)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self.round = trainer.global_step
            self.names |= set(trainer.callback_metrics) - self._before


def _may_keep_last(callbacks: Any) -> bool:
    """Return whether a configured callback may be a ``ModelCheckpoint``, which Lightning asks for the last one."""
    given = callbacks if isinstance(callbacks, list) else [callbacks] if callbacks else []
    return any(not str(getattr(each, "class_path", "")).startswith("fedlightning.") for each in given)


def _listed(metrics: Mapping[str, float], names: Collection[str]) -> str:
    return ", ".join(f"{name}={metrics[name]:.4g}" for name in sorted(names))


def _import_public_classes() -> None:
    """Import the public classes, because the help lists only imported classes."""
    for package in (callbacks, data, tasks):
        for name in package.__all__:
            getattr(package, name)


def seed_of(given: bool | int) -> int:
    """Return the seed that ``seed_everything`` gives, as Lightning reads it: the default seed for ``true``."""
    return 0 if isinstance(given, bool) else given
