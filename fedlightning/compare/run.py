"""One run of a comparison, in a folder of its own."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import itertools
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar

from jsonargparse import Namespace
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser

from fedlightning.callbacks import ClientValuesFile, History, LastCheckpoint
from fedlightning.callbacks.history import Row
from fedlightning.cli.app import FederatedCLI
from fedlightning.cli.config_of_run import ConfigOfRun
from fedlightning.cli.stops import signal_behind
from fedlightning.compare.arguments import Mode, Report
from fedlightning.compare.best_round import BestRound, require_choice
from fedlightning.compare.expected import ExpectedMetric
from fedlightning.compare.goal import Goal
from fedlightning.compare.loggers import Place, close, placed, remember
from fedlightning.compare.own_code import own_code
from fedlightning.compare.warned import kept, quiet
from fedlightning.core.errors import InvalidValueError
from fedlightning.data.partitioners import Partitioner
from fedlightning.federation.server import RoundRejectedError

ALGORITHM = "model.init_args.algorithm.init_args"

ReportProgress = Callable[[int], None]
"""Called with the rounds done so far."""


@dataclass(frozen=True)
class Run:
    """Describes one run of a comparison.

    Attributes:
        name: Of the algorithm, as shown in tables and legends.
        seed: Of everything random.
        arguments: Command-line arguments of ``fedlightning fit``.
        folder: Where results go.
        test: Whether to test the model of the reported round.
        budget_upload: Stop after the round in which so many floats have been uploaded; None for no such limit.
        metric: Metric of the comparison, which validation must log; checked as soon as its names are known.
        values: Of the searched hyper-parameters, as shown.
        twin: Folder of a run that may have been the same one; then its results are taken over.
        comparison: Folder of the comparison; None for a run by itself.
        report: The round that is reported, and tested.
        mode: Whether more or less of the metric is better.
    """

    name: str
    seed: int
    arguments: tuple[str, ...]
    folder: Path
    test: bool = False
    budget_upload: float | None = None
    metric: str = ""
    values: str = ""
    twin: Path | None = None
    comparison: Path | None = None
    report: Report = "last"
    mode: Mode = "max"

    @property
    def tests_best(self) -> bool:
        """Whether the best round is tested, of which a checkpoint is kept, and not the last."""
        return self.test and self.report != "last"

    @property
    def place(self) -> Place:
        """Where the loggers of the run write."""
        return Place(self.name, self.seed, str(self), self.folder, self.comparison or self.folder)

    @property
    def history(self) -> list[Row]:
        """Return the history of a finished run, one entry per validation."""
        with (self.folder / "history.csv").open(newline="") as file:
            return [{k: float(v) for k, v in row.items() if v != ""} for row in csv.DictReader(file)]

    @property
    def summary(self) -> dict[str, Any]:
        """Return the content of a finished run's ``done.json``."""
        return dict(json.loads((self.folder / "done.json").read_text()))

    @property
    def warnings_file(self) -> Path:
        """Where the run keeps what it has warned of."""
        return self.folder / "warnings.json"

    @property
    def warnings(self) -> list[str]:
        """Return what the run has warned of so far, each message once."""
        return list(json.loads(self.warnings_file.read_text())) if self.warnings_file.is_file() else []

    def __str__(self) -> str:
        """Return name, seed and values of the run."""
        return ", ".join(filter(None, (self.name, f"seed {self.seed}", self.values)))


@dataclass(frozen=True)
class Prepared:
    """Says what is left to do of a run.

    Attributes:
        run: The run.
        rounds: Rounds of the run.
        is_finished: Whether all of it is done.
        loggers: Configurations of the loggers.
        keeps_virtual_time: Whether its participation has a virtual clock.
        processes: Processes that share its clients.
    """

    run: Run
    rounds: int
    is_finished: bool
    loggers: list[Namespace]
    keeps_virtual_time: bool
    processes: int


def prepare(run: Run) -> Prepared:
    """Check a run's configuration and find out how much of the run is already done.

    Results of another configuration in the same folder, or of other code of the user's, are moved aside, to
    ``<folder>.before-1`` and so on. Those of a twin with the same configuration are copied.
    """
    cli, fingerprint = _instantiate(run)
    rounds = cli.trainer.max_steps
    if rounds < 0:
        epochs = cli.trainer.max_epochs
        if epochs is None or epochs < 0:
            raise InvalidValueError(
                f"{run.name}: the configuration sets neither trainer.max_steps nor trainer.max_epochs."
            )
        rounds = epochs * cli.datamodule.rounds_per_epoch
    started = run.folder / "fingerprint"
    if started.is_file() and started.read_text() != fingerprint:
        _move_aside(run.folder)
    if run.twin is not None and not run.folder.exists() and _is_finished(run.twin, fingerprint):
        partial = run.folder.with_name(f"{run.folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(run.twin, partial)
        partial.rename(run.folder)
    is_finished = (run.folder / "done.json").is_file() and not (run.test and _untested(run))
    loggers = placed(cli.configured_logger, run.place)
    keeps_virtual_time = cli.datamodule.participation.keeps_virtual_time
    return Prepared(run, rounds, is_finished, loggers, keeps_virtual_time, cli.trainer.world_size)


def hyper_parameters(run: Run) -> dict[str, str]:
    """Return the hyper-parameters of a run's algorithm and local solver, with their keys of ``fedlightning fit``."""
    cli, _ = _instantiate(run)
    algorithm = cli.model.algorithm
    solver = getattr(algorithm, "solver", None)
    theirs = fields(solver) if is_dataclass(solver) else ()
    return {
        **{field.name: f"{ALGORITHM}.solver.init_args.{field.name}" for field in theirs},
        **{field.name: f"{ALGORITHM}.{field.name}" for field in fields(algorithm)},
    }


def execute(run: Run, report: ReportProgress, stopped: Callable[[], bool] = lambda: False) -> None:
    """Carry out a run, from the last checkpoint if the run was interrupted.

    Args:
        run: What to run.
        report: Called with the rounds done.
        stopped: Asked before every round and every batch of the test; if it says so, the run is interrupted there.

    Raises:
        KeyboardInterrupt: If the run was interrupted; it goes on from there when it is executed again.
    """
    cli, fingerprint = _instantiate(run, logs=True)
    trainer = cli.trainer
    run.folder.mkdir(parents=True, exist_ok=True)
    if trainer.is_global_zero:
        (run.folder / "fingerprint").write_text(fingerprint)
    history = History()
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    callbacks[:] = [c for c in callbacks if not isinstance(c, LastCheckpoint)]
    for callback in callbacks:
        if isinstance(callback, ConfigOfRun | ClientValuesFile):  # one path would be the same in all runs
            callback.folder = run.folder
    callbacks += [
        history,
        _Stop(stopped),
        _Report(report),
        LastCheckpoint(str(run.folder)),
        ExpectedMetric(run.metric, history),
    ]
    if run.budget_upload is not None:
        callbacks.append(_UploadBudget(run.budget_upload))
    if run.tests_best:
        callbacks.append(BestRound(Goal(run.metric, run.mode), history, run.folder / "best.ckpt"))
    last = run.folder / "last.ckpt"
    tested_at = str(run.folder / "best.ckpt") if run.tests_best else None
    validates_on_test = cli.datamodule.federation.validates_on_test
    require_choice(run.report, validates_on_test)
    diverged = False
    goes_on = last.is_file()
    with (
        quiet() as caught,
        kept(caught, run.warnings_file, run.warnings if goes_on else [], trainer.is_global_zero),
        _interrupts_as_such(),
        _logged(trainer, run.folder),
    ):
        try:
            trainer.fit(cli.model, cli.datamodule, ckpt_path=str(last) if goes_on else None)
            if not history.rows or history.rows[-1]["round"] < trainer.global_step:
                trainer.validate(cli.model, cli.datamodule, verbose=False)  # the end of the run belongs to its curve
        except RoundRejectedError:
            diverged = True
        if trainer.is_global_zero:  # a test of an earlier round takes the history back to it
            history.write(run.folder / "history.csv")
        tests = run.test and not diverged
        tested = trainer.test(cli.model, cli.datamodule, ckpt_path=tested_at, verbose=False) if tests else [{}]
    summary = {
        "name": run.name,
        "seed": run.seed,
        "diverged": diverged,
        "test": dict(tested[0]) if tested else {},
        "validates_on_test": validates_on_test,
    }
    if trainer.is_global_zero:
        partial = run.folder / "done.json.partial"
        partial.write_text(json.dumps(summary, indent=1))
        os.replace(partial, run.folder / "done.json")
    trainer.strategy.barrier()


@contextlib.contextmanager
def _logged(trainer: Trainer, folder: Path) -> Iterator[None]:
    """Note where a run is logged, and end it there in any case."""
    try:
        remember(trainer.loggers, folder)
        yield
    finally:
        close(trainer.loggers)


@contextlib.contextmanager
def _interrupts_as_such() -> Iterator[None]:
    """Let interrupts pass, where Lightning would end the program."""
    try:
        yield
    except SystemExit as exit_:
        if signal_behind(exit_) is signal.SIGINT:
            raise KeyboardInterrupt from exit_
        raise


class _RunCLI(FederatedCLI):
    """Makes task, data and trainer of a run.

    Attributes:
        configured_logger: The value of ``trainer.logger``.
    """

    _built: ClassVar[dict[str, LightningArgumentParser]] = {}
    """A parser as it is built, by the defaults: building it again for every run takes as long as reading a config."""

    def __init__(self, run: Run, logs: bool) -> None:
        self._place = run.place if logs else None
        self.configured_logger: Any = None
        fixed = (
            f"--seed_everything={run.seed}",
            "--trainer.enable_progress_bar=false",
            "--trainer.enable_model_summary=false",
            f"--trainer.default_root_dir={run.folder}",
        )
        super().__init__([*run.arguments, *fixed], run=False)

    def setup_parser(self, add_subcommands: bool, *arguments: Any) -> None:
        """Take a copy of what was built for an earlier run; what instantiates the classes of this run is its own."""
        defaults = repr(self.trainer_defaults)
        if defaults not in self._built:
            super().setup_parser(add_subcommands, *arguments)
            self._built[defaults] = self.parser
        self.parser = copy(self._built[defaults])

    def before_instantiate_classes(self) -> None:
        """Give the loggers their places; without one, there are none."""
        self.configured_logger = self.config.trainer.logger
        self.config.trainer.logger = (
            False if self._place is None else placed(self.configured_logger, self._place) or False
        )


def _instantiate(run: Run, logs: bool = False) -> tuple[_RunCLI, str]:
    with quiet(), contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            cli = _RunCLI(run, logs)
        except SystemExit as exit_:
            complaint = errors.getvalue().strip().removeprefix("fedlightning: ")
            raise InvalidValueError(f"The configuration of {run} is not valid: {complaint}") from exit_
    config = cli.config.clone()
    config.trainer.default_root_dir = None  # a moved folder holds the same results
    config.trainer.logger = False  # and so does one that is logged elsewhere
    identity = cli.parser.dump(config, skip_none=False, skip_validation=True) + own_code(config.as_dict())
    partitioner = getattr(cli.datamodule, "partitioner", None)
    if isinstance(partitioner, Partitioner):
        identity += partitioner.fingerprint()
    if run.budget_upload is not None:
        identity += f"budget_upload: {run.budget_upload}"
    if run.tests_best:
        identity += f"tested at the best round: {run.metric} {run.mode}"
    return cli, hashlib.sha256(identity.encode()).hexdigest()


def _is_finished(folder: Path, fingerprint: str) -> bool:
    return (folder / "done.json").is_file() and (folder / "fingerprint").read_text() == fingerprint


def _untested(run: Run) -> bool:
    return not run.summary["test"] and not run.summary["diverged"]


def _move_aside(folder: Path) -> None:
    places = (folder.with_name(f"{folder.name}.before-{number}") for number in itertools.count(1))
    folder.rename(next(place for place in places if not place.exists()))


class _Report(Callback):
    """Reports how many rounds are done."""

    def __init__(self, report: ReportProgress) -> None:
        self._report = report

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._report(trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self._report(trainer.global_step)


class _Stop(Callback):
    """Interrupts a run between two rounds, where a curve has all points, or between two batches of the test."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped

    def on_train_batch_start(self, *args: Any) -> None:
        if self._stopped():
            raise KeyboardInterrupt

    def on_test_batch_start(self, *args: Any) -> None:
        self.on_train_batch_start()


class _UploadBudget(Callback):
    """Stops training when enough has been uploaded; Lightning validates the last round."""

    def __init__(self, floats: float) -> None:
        self._floats = floats

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._judge(trainer, pl_module)  # a run taken up again may have used it up

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *args: Any) -> None:
        self._judge(trainer, pl_module)

    def _judge(self, trainer: Trainer, module: Any) -> None:
        if module.traffic[0] >= self._floats:
            trainer.should_stop = True
