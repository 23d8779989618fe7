"""The rounds of a fit, each of which is one training step of the task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import UsageError
from fedlightning.core.in_force import scheduled_numbers
from fedlightning.core.modules import first_trained
from fedlightning.federation.loop import RoundResult
from fedlightning.federation.protocol import Moment
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.federation.server import RoundRejectedError
from fedlightning.oracle.threads import limited
from fedlightning.tasks.checkpoints.checkpoint import rescue
from fedlightning.tasks.checks.channel_checks import warn_of_negative_variances
from fedlightning.tasks.checks.fit_checks import check_fit, require_round, warn_of_schedules_that_go_on
from fedlightning.tasks.checks.lightning_surface import (
    refuse_changed,
    refuse_gradient_hooks,
    refuse_switched_parameters,
)
from fedlightning.tasks.checks.repeated_draws import note_draws
from fedlightning.tasks.fit.kept_memory import KeptMemory
from fedlightning.tasks.fit.precision import RoundPrecision
from fedlightning.tasks.fit.round_report import RoundReport, client_step_sizes
from fedlightning.tasks.fit.server_step import ServerStep

if TYPE_CHECKING:
    from fedlightning.federation.simulation import Simulation
    from fedlightning.tasks.base import FederatedLightningModule


class TrainingRounds:
    """Carries out rounds between the server and the clients of a task, and moves the task's global model after each.

    Attributes:
        last: Outcome of the last round of this fit; None before the first.
    """

    def __init__(self, task: FederatedLightningModule, server_step: ServerStep) -> None:
        """Store the task and its server step; no fit has begun yet.

        Args:
            task: The task that is trained.
            server_step: Moves the global model.
        """
        self._task = task
        self._server_step = server_step
        self._report = RoundReport()
        self._running = False
        self._trained: Mapping[str, bool] = {}
        self._algorithm: Algorithm | None = None
        self._threads: int | None = None  # those of the last round; None for as many as PyTorch takes
        self.last: RoundResult | None = None

    @property
    def running(self) -> bool:
        """Return whether clients compute at the moment, so that calls of the task come from its own objective."""
        return self._running

    def begin_fit(self) -> OptimizerLRScheduler:
        """Check what the fit trains, and return the server's optimizer of the shared parameters.

        Raises:
            TypeError: If the fit would leave out what the task needs.
            ValueError: If a name prefix or a shape of the algorithm's or the regularizer's does not fit the task.
        """
        self._report = RoundReport()
        self.last = self._threads = None
        task = self._task
        task.logs_axis = False
        space, options = task.parameter_space(), task.federation_options
        task.algorithm.bind(space, first_trained(task), options.composite(space))  # names wrong prefixes and shapes now
        space.shared.columns(options.drift_parameters, "drift_parameters")
        check_fit(task, space)
        KeptMemory.during_fit(task.trainer)
        named = dict(task.named_parameters())
        self._algorithm = task.algorithm
        self._trained = {name: parameter.requires_grad for name, parameter in named.items()}
        return self._server_step.configure([named[name] for name in space.shared.names])

    def carry_out(self, batch: Any) -> RoundResult:
        """Carry out one communication round, and move the task's global model.

        Args:
            batch: A round of the data module.

        Returns:
            The outcome, with the clients' step sizes and all hyper-parameters that vary among the metrics.

        Raises:
            RoundRejectedError: If no client returned finite numbers; the state before the round is saved.
            RuntimeError: If another round is due, or what it goes on from was changed since the last one: a
                parameter, a buffer, which parameters are trained, or the algorithm.
            TypeError: If the data are no rounds of a federation, or a parameter has got a gradient hook.
            ValueError: If a hyper-parameter of the server's step was set that has nothing to act on.
        """
        task = self._task
        trainer = task.trainer
        repeats: Any = trainer.overfit_batches  # type: ignore[attr-defined]
        require_round(batch, len(task.algorithm.phases), None if repeats else trainer.global_step)
        if repeats:
            batch = batch.numbered(trainer.global_step)
        with limited(self._threads):
            self._refuse_changes()
        simulation = task.run.simulation  # the first round makes it, and must have compared nothing with it before
        task.run.release_loaded()
        self._threads = simulation.runner.oracle_selection.threads if task.device.type == "cpu" else None
        with limited(self._threads):  # more of them would wait for each other between gradients, too
            return self._carried_out(batch, simulation)

    def _refuse_changes(self) -> None:
        """Refuse what was changed since the last round; the first one has nothing to compare with yet."""
        task = self._task
        refuse_gradient_hooks(task)
        refuse_switched_parameters(task, self._trained)
        refuse_changed(task, task.run.changed, task.run.rounds)
        self._server_step.require_unchanged(task)
        self._require_same_algorithm()
        if self.last is None:
            warn_of_schedules_that_go_on(task)

    def _carried_out(self, batch: RoundBatch, simulation: Simulation) -> RoundResult:
        task = self._task
        before = simulation.server.state
        precision = RoundPrecision.of(task)
        with self._computing(batch), torch.autocast(task.device.type, enabled=False):
            placed = batch.place(task.device, first_trained(task).dtype)
            moment = Moment(task.current_epoch, task.trainer.fit_loop.batch_idx, task.trainer.global_step)
            result = simulation.run(placed, precision.autocast, precision.undoes_overflow, moment)
        self._server_step.take(task, simulation, precision.scaler, result.undone)
        if task.federation_options.channel is not None:
            warn_of_negative_variances(task)
        simulation.loop.finish_round()
        task.run.rounds = task.trainer.global_step
        note_draws(task)
        numbers = _hyper_parameters(simulation.server.algorithm, before, batch)
        self.last = self.named(replace(result, metrics={**result.metrics, **numbers}))
        return self.last

    def _require_same_algorithm(self) -> None:
        if self._task.algorithm is not self._algorithm:
            raise UsageError(
                f"{type(self._task).__name__}.algorithm was set to {self._task.algorithm!r} during the fit, which "
                f"would go on with {self._algorithm!r}. Give hyper-parameters schedules (fedlightning.schedules), or "
                "set another algorithm between two fits."
            )

    def named(self, result: RoundResult) -> RoundResult:
        """Return the outcome of a round with the names under which it is reported.

        Args:
            result: Outcome of the round, with ``train_`` before the name of each value of the objective.
        """
        return result

    def reported(self, result: RoundResult) -> Mapping[str, Tensor | float]:
        """Return what a round reports by name, for whatever looks at single rounds.

        Args:
            result: Outcome of the round.
        """
        return result.metrics

    def report(self, result: RoundResult, seconds: float) -> None:
        """Pass the metrics of a round on to callbacks and loggers.

        Args:
            result: Outcome of the round.
            seconds: How long the round took.
        """
        self.publish(result, {**result.metrics, "round_time": seconds})

    def publish(self, result: RoundResult, metrics: dict[str, Tensor | float], hidden: Collection[str] = ()) -> None:
        """Pass values on to callbacks and loggers after a round.

        Args:
            result: Outcome of the round.
            metrics: What is reported of it, by name.
            hidden: Names of what loggers do not get.
        """
        self._report.publish(self._task, result, metrics, hidden)

    @contextmanager
    def _computing(self, batch: RoundBatch) -> Iterator[None]:
        """Mark the time in which clients compute, and save the state before a round that is rejected."""
        self._running = True
        try:
            yield
        except RoundRejectedError as error:
            raise RoundRejectedError(f"Round {batch.index + 1}: {error}{rescue(self._task.trainer)}") from None
        finally:
            self._running = False


def _hyper_parameters(algorithm: Algorithm, server: Any, batch: RoundBatch) -> dict[str, float]:
    """Return what is logged of the hyper-parameters of a round: the clients' step sizes, and all that vary.

    Args:
        algorithm: As it was bound for the round.
        server: The server state before the round.
        batch: The round.
    """
    values = client_step_sizes(algorithm.given, server)
    if algorithm.binding is not None:
        varying = scheduled_numbers(algorithm.binding.given, batch.index)
        values |= {f"schedule/{name}": value for name, value in varying.items()}
    return values
