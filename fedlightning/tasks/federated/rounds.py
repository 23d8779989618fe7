"""The rounds of a module that many clients train by its training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.precision import as_tensor
from fedlightning.federation.loop import RoundResult
from fedlightning.tasks.federated.log_options import LogOptions, name_of_epoch, of_rounds
from fedlightning.tasks.federated.step import LOGGED, ModuleStep
from fedlightning.tasks.fit.rounds import TrainingRounds
from fedlightning.tasks.fit.server_step import ServerStep

V = TypeVar("V")

_TALLIED = f"train_{LOGGED}"
_ALSO_REPORTED = frozenset(
    {"round_time", "regularization", "round", "stage", "client", "samples", "minibatches", "counted"}
)
"""Names that loggers, callbacks and the file of the clients' values have beside the metrics of a round."""


class ModuleRounds(TrainingRounds):
    """Carries out rounds, and reports what training steps log under the module's own names.

    With ``on_step``, the default, a value is reported after every round. With ``on_epoch``, the mean over the rounds of
    an epoch is reported at its end, and of a metric its value over all of the epoch's minibatches; with both, the two
    are ``name_step`` and ``name_epoch``.
    """

    def __init__(self, task: Any, server_step: ServerStep, step: ModuleStep) -> None:
        """Store what rounds need.

        Args:
            task: The task that is trained.
            server_step: Moves the global model.
            step: The module's training step, which knows what it logs and how.
        """
        super().__init__(task, server_step)
        self._step = step
        self._options = step.options
        self._of_epoch: dict[str, tuple[Tensor | float, int]] = {}  # sum over the epoch's rounds so far, their number

    def begin_fit(self) -> OptimizerLRScheduler:
        """Begin an epoch with the fit, and return the server's optimizer.

        Raises:
            TypeError: As in :class:`TrainingRounds`.
            ValueError: Likewise.
        """
        self._of_epoch = {}
        return super().begin_fit()

    def named(self, result: RoundResult) -> RoundResult:
        """Return the outcome of a round with logged values under the names that the module gave them.

        Raises:
            ValueError: If the module logs a value under a name that rounds report something else under, or clients at
                nodes a metric that needs the samples of all clients.
        """
        self._take_options_of_nodes()
        require_free_names(result.metrics)
        return replace(result, metrics=named_as_logged(result.metrics), columns=named_as_logged(result.columns))

    def reported(self, result: RoundResult) -> Mapping[str, Tensor | float]:
        """Return what a round reports by the names that loggers have, with values of epochs up to the round.

        These are means over the rounds of the epoch so far. The value that a metric finds over an epoch is there at its
        last round; before, it is that of the round alone.

        Args:
            result: Outcome of the round, the next one of its epoch.

        Raises:
            ValueError: If two values would have one name.
        """
        values = {**of_rounds(result.metrics, self._options)}
        for name, how in self._options.items():
            if how.on_epoch and name in result.metrics:
                total, rounds = self._of_epoch.get(name, (0.0, 0))
                self._of_epoch[name] = total, rounds = total + result.metrics[name], rounds + 1
                values[name_of_epoch(name, how)] = result.metrics[name] if how.gathers else total / rounds
        if self._task.trainer.is_last_batch:
            metrics = self._step.metrics_of_epoch()
            values |= {name_of_epoch(name, self._options[name]): value for name, value in metrics.items()}
        return values

    def report(self, result: RoundResult, seconds: float) -> None:
        """Pass the metrics of a round on to callbacks and loggers, and values of epochs to Lightning.

        Raises:
            ValueError: If two values would have one name.
        """
        metrics = {**of_rounds(result.metrics, self._options), "round_time": seconds}
        silent = [name for name, how in self._options.items() if how.logger is False]
        self.publish(result, metrics, {*silent, *(f"{name}_step" for name in silent)})
        trainer: Any = self._task.trainer
        if trainer.barebones:
            return
        for name, how in self._options.items():
            if name in result.metrics and how.prog_bar and how.on_step:
                shown = f"{name}_step" if how.is_forked else name
                trainer.progress_bar_metrics[shown] = float(result.metrics[name])
            if name in result.metrics and how.is_forked:
                trainer.callback_metrics[name] = as_tensor(result.metrics[name])
            if name in result.metrics and how.on_epoch and not how.gathers:
                self._log_over_epoch(name, result.metrics[name])
        if trainer.is_last_batch:  # in the module's hook, which comes after those of callbacks, it would be too late
            self._log_metrics_of_epoch()

    def end_epoch(self) -> None:
        """Begin the next epoch; values that metrics find over one that ends before its last round are logged now."""
        if not self._task.trainer.is_last_batch:
            self._log_metrics_of_epoch()
        self._step.reset_metrics()
        self._of_epoch = {}

    def _log_metrics_of_epoch(self) -> None:
        for name, value in self._step.metrics_of_epoch().items():
            self._log_over_epoch(name, value)

    def _take_options_of_nodes(self) -> None:
        """Report what is logged at nodes as it is to be reported."""
        roster = self._task.run.simulation.server.roster
        for name, given in ({} if roster is None else roster.log_options).items():
            how = self._options.setdefault(name, LogOptions.of(name, given))
            if how.gathers and how.on_epoch:
                raise InvalidValueError(
                    f"training_step logs the metric '{name}' with on_epoch=True: its value over an epoch needs the "
                    "samples of all clients, which are at nodes. Leave on_epoch out for the mean of every round, or "
                    "log a number."
                )

    def _log_over_epoch(self, name: str, value: Tensor | float) -> None:
        """Have Lightning average a value over the epoch; each that it is given counts alike."""
        how = self._options[name]
        once: Any = {"on_step": False, "on_epoch": True, "batch_size": 1}
        if how.is_forked:
            self._task.log(name, value, logger=False, **once)  # for callbacks
        self._task.log(name_of_epoch(name, how), value, logger=how.logger, prog_bar=how.prog_bar, **once)


def require_free_names(metrics: Mapping[str, object]) -> None:
    """Make sure that no logged value has the name of another value; ``train_loss`` alone may be the module's own.

    Args:
        metrics: The metrics of a round, with logged values under the names that they have as outputs of the objective.

    Raises:
        ValueError: If a name is taken.
    """
    taken = ({*metrics} | _ALSO_REPORTED) - {"train_loss"}
    logged = (name.removeprefix(_TALLIED) for name in metrics if name.startswith(_TALLIED))
    if clash := next((name for name in logged if name in taken), None):
        raise InvalidValueError(
            f"The module's training_step logs '{clash}', a name under which rounds report a value of their own. Log it "
            f"under another name, such as 'train_{clash}'."
        )


def named_as_logged(values: Mapping[str, V]) -> dict[str, V]:
    """Return values of a round by name, with logged ones under the names that the module gave them."""
    own = {name: value for name, value in values.items() if not name.startswith(_TALLIED)}
    logged = {name.removeprefix(_TALLIED): value for name, value in values.items() if name.startswith(_TALLIED)}
    return {**own, **logged}
