"""The report of a round to Lightning's callbacks and loggers, and a warning when a run diverges."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import inf, isfinite, isnan
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.callbacks.clients import EvaluateClients
from fedlightning.callbacks.loggers import log_histogram
from fedlightning.callbacks.percentiles import percentiles
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.precision import as_tensor
from fedlightning.core.settings import settings
from fedlightning.federation.client_columns import of_all_processes
from fedlightning.federation.loop import RoundResult
from fedlightning.federation.remedies import LOOK_AT_DATA, smaller_steps
from fedlightning.tasks.checks.step_advice import server_moves
from fedlightning.tasks.fit.axis import refresh_axis

_RUNAWAY = 1e6


class RoundReport:
    """Passes metrics on to callbacks after every round, and to loggers when they are due."""

    def __init__(self) -> None:
        """Start a fit, in which no loss is known yet."""
        self._yardstick: float | None = None
        self._has_warned_of_nan = False

    def publish(
        self, task: Any, result: RoundResult, metrics: dict[str, Tensor | float], hidden: Collection[str] = ()
    ) -> None:
        """Pass the metrics of a round on to callbacks and loggers.

        They do not go through ``self.log``, which takes Lightning more than a quarter of a millisecond a value. That is
        too long for a short round.

        Args:
            task: The task, attached to a trainer.
            result: Outcome of the round.
            metrics: Values to report, by name.
            hidden: Names of what loggers do not get.
        """
        trainer: Any = task.trainer
        if trainer.barebones:
            return
        is_read = _is_read(trainer)
        penalty = task.regularization() if is_read else None
        if penalty is not None:
            metrics["regularization"] = penalty
        else:
            trainer.callback_metrics.pop("regularization", None)  # that of an earlier round
        if "skipped" not in metrics:
            trainer.callback_metrics.pop("skipped", None)
        named = {**metrics, "step": float(trainer.global_step)}  # checkpoints are named by the step
        trainer.callback_metrics.update({name: as_tensor(value) for name, value in named.items()})
        refresh_axis(task)
        if is_read or task.device.type == "cpu":  # elsewhere a look would wait for the device
            self._watch(result.metrics, task)
        every = trainer.log_every_n_steps
        if not (trainer.should_stop or (every and (trainer.global_step % every == 0 or _is_last(trainer)))):
            return
        numbers = {name: float(value) for name, value in metrics.items() if name not in hidden}
        spread = _distributions(task, result)
        which = _percentiles_of(trainer)
        for name, values in spread.items():
            numbers |= {f"{name}{suffix}": value for suffix, value in percentiles(values, which).items()}
        trainer.logged_metrics.update({name: as_tensor(value) for name, value in numbers.items()})
        for logger in trainer.loggers:
            logger.log_metrics({**numbers, "epoch": trainer.current_epoch}, step=trainer.global_step)
            logger.save()
        for name, values in spread.items():
            log_histogram(trainer, f"{name}_clients", values)

    def _watch(self, metrics: Mapping[str, Tensor | float], task: Any) -> None:
        """Warn once if the training loss is not finite, or has grown a million-fold since the start of the fit.

        The start is the loss of a client before the first round; where it is unknown, the mean loss of the first round.

        Args:
            metrics: Values of the round by name.
            task: The task, attached to a trainer.
        """
        if "train_loss" not in metrics:
            return
        rounds, start = task.trainer.global_step, _start_loss(task)
        loss = abs(float(metrics["train_loss"]))
        if self._yardstick is None and (start is not None or isfinite(loss)):
            self._yardstick = max(loss if start is None else abs(start), 1e-3)  # a saddle point may begin near zero
        if self._yardstick is not None and loss > _RUNAWAY * self._yardstick:
            rank_zero_warn(
                f"train_loss has grown more than a million-fold, to {loss:.3g} in round {rounds}:"
                f" the run diverges. {_remedy(task)}"
            )
            self._yardstick = inf
        elif (isnan(loss) or self._yardstick is None) and not self._has_warned_of_nan:
            self._has_warned_of_nan = True
            rank_zero_warn(
                f"train_loss is {'NaN' if isnan(loss) else 'infinite'} in round {rounds}, though the gradients of the "
                "clients that count are finite: a term of the objective is undefined where its gradient is not (log of "
                "a negative number, 0/0). Look at the data and at every term of the objective."
            )


def _percentiles_of(trainer: Any) -> tuple[float, ...]:
    """Return which percentiles over clients are logged, as the callback of validation says it."""
    return next((each.percentiles for each in trainer.callbacks if isinstance(each, EvaluateClients)), ())


def _distributions(task: Any, result: RoundResult) -> dict[str, Tensor]:
    """Return what the algorithm logs client by client: the finite values of the clients that count in the mean."""
    columns = of_all_processes(
        {name: column for name, column in result.columns.items() if column.is_distribution},
        task.run.simulation.loop.transport.processes,
    )
    return {name: column.values[column.counted & column.values.isfinite()] for name, column in columns.items()}


def _start_loss(task: Any) -> float | None:
    """Return the loss of a client before the first round, if it is known and finite."""
    roster = task.run.simulation.server.roster
    loss = None if roster is None else roster.start_loss
    return loss if loss is not None and isfinite(loss) else None


def _remedy(task: Any) -> str:
    """Return what helps a run that diverges: options that the algorithm and the task have."""
    others = [f"set {settings({'model.server_clip': ...})}"] if server_moves(task) else [LOOK_AT_DATA]
    return smaller_steps(task.algorithm, *others)


def client_step_sizes(algorithm: Algorithm, server: Any) -> dict[str, float]:
    """Return the clients' step size in the coming round as ``client_lr``, by block or prefix if it differs.

    Args:
        algorithm: Has the step size, or a solver that has one; otherwise nothing is returned.
        server: The server state before the round.
    """
    given: PerBlock | None = getattr(algorithm, "lr", None)
    if given is None:
        given = getattr(getattr(algorithm, "solver", None), "lr", None)
    if given is None:
        return {}
    scale = algorithm.step_scale(server)
    if isinstance(given, Mapping):
        return {f"client_lr/{name}": scale * float(lr) for name, lr in given.items()}
    if isinstance(given, list | tuple):
        return {f"client_lr/{name}": scale * float(lr) for name, lr in zip(("min", "max"), given, strict=True)}
    return {"client_lr": scale * float(given)}


def _is_read(trainer: Any) -> bool:
    """Return whether a logger or a callback reads the metrics of this round."""
    rounds = trainer.global_step
    due = rounds == 1 or _is_last(trainer) or rounds % max(1, trainer.log_every_n_steps) == 0
    watched = any(getattr(callback, "monitor", None) for callback in trainer.callbacks)
    return due or watched or bool(trainer.is_last_batch)


def _is_last(trainer: Any) -> bool:
    """Return whether the fit ends with this round, so that a short fit shows its metrics, too."""
    last_epoch = trainer.max_epochs is not None and trainer.current_epoch + 1 == trainer.max_epochs
    return bool(trainer.global_step == trainer.max_steps or (last_epoch and trainer.is_last_batch))
