"""The rounds of a module that many clients train by its training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.loop import RoundResult
from fedlightning.tasks.federated.log_options import LogOptions, of_rounds
from fedlightning.tasks.federated.step import LOGGED
from fedlightning.tasks.rounds import TrainingRounds
from fedlightning.tasks.server_step import ServerStep

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

    def __init__(self, task: Any, server_step: ServerStep, options: dict[str, LogOptions]) -> None:
        """Store what rounds need.

        Args:
            task: The task that is trained.
            server_step: Moves the global model.
            options: How values that training steps log are reported, by name; filled while they log.
        """
        super().__init__(task, server_step)
        self._options = options

    def named(self, result: RoundResult) -> RoundResult:
        """Return the outcome of a round with logged values under the names that the module gave them.

        Raises:
            ValueError: If the module logs a value under a name that rounds report something else under, or clients at
                nodes a metric that needs the samples of all clients.
        """
        self._take_options_of_nodes()
        require_free_names(result.metrics)
        return replace(result, metrics=named_as_logged(result.metrics), columns=named_as_logged(result.columns))

    def report(self, result: RoundResult, seconds: float) -> None:
        """Pass the metrics of a round on to callbacks and loggers, and values of epochs to Lightning.

        Raises:
            ValueError: If two values would have one name.
        """
        metrics = {**of_rounds(result.metrics, self._options), "round_time": seconds}
        self.publish(result, metrics)
        trainer: Any = self._task.trainer
        if trainer.barebones:
            return
        for name, how in self._options.items():
            if name in result.metrics and how.is_forked:
                trainer.callback_metrics[name] = torch.as_tensor(result.metrics[name])
            if name in result.metrics and how.on_epoch and not how.gathers:
                self._log_over_epoch(name, result.metrics[name])

    def end_epoch(self, metrics: Mapping[str, Tensor]) -> None:
        """Have values of an epoch logged at the round they belong to; Lightning would count one less.

        Args:
            metrics: Values over the epoch that need no mean over rounds.
        """
        for name, value in metrics.items():
            self._log_over_epoch(name, value)
        if any(how.on_epoch for how in self._options.values()):
            self._task.log("step", float(self._task.trainer.global_step))

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
        own = f"{name}_epoch" if how.is_forked else name
        self._task.log(own, value, logger=how.logger, prog_bar=how.prog_bar, **once)


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
