"""A LightningModule's training step as the objective of clients, with what it logs as outputs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from lightning.pytorch import LightningModule
from torch import Tensor
from torchmetrics import Metric

from fedlightning.core.errors import InvalidTypeError, InvalidValueError, UsageError
from fedlightning.tasks.evaluation.client_evaluation import is_mean
from fedlightning.tasks.federated.log_options import LogOptions
from fedlightning.tasks.federated.requirements import base_of, overrides

LOGGED = "logged/"
"""Begins the names under which logged values are returned beside the loss."""


class ModuleStep:
    """Calls ``training_step`` of a module that is part of a federated task, and answers for the task's logger.

    The module logs into the task: during its training step values are gathered and become outputs of the objective, at
    all other times they are the task's to log.

    Attributes:
        options: How the values that training steps have logged are reported, by name.
    """

    def __init__(self, module: Any, task: Any) -> None:
        """Connect a module with the task that it is part of.

        Args:
            module: A LightningModule, whose methods ``log``, ``optimizers`` and ``lr_schedulers`` are those of this
                object from now on.
            task: The federated task.
        """
        self._module = module
        self._task = task
        takes = inspect.signature(module.training_step).parameters.values()
        self._takes_index = len(takes) > 1 or any(each.kind is each.VAR_POSITIONAL for each in takes)
        self._transfers = overrides(module, "on_after_batch_transfer")
        self._open: dict[int, dict[str, Any]] = {}
        self._metrics: dict[str, Metric] = {}
        self.options: dict[str, LogOptions] = {}
        self.answer()

    def answer(self) -> None:
        """Have the module's ``log`` and what it asks of optimizers answered here; a copy of the module has its own."""
        for method in (self.log, self.optimizers, self.lr_schedulers):
            setattr(self._module, method.__name__, _Answer(self._module, method))

    def __call__(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Return the loss of one client's minibatch, and what the step logs.

        Args:
            batch: One client's minibatch.
            batch_idx: Number of the round in its epoch, the same for all minibatches of a round.

        Raises:
            TypeError: If the step returns no loss.
        """
        with self._opened() as logged:
            if self._transfers:
                batch = self._module.on_after_batch_transfer(batch, 0)
            output = (
                self._module.training_step(batch, batch_idx) if self._takes_index else self._module.training_step(batch)
            )
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor):
            got = (
                f"a {type(output).__name__} without 'loss'"
                if isinstance(output, Mapping)
                else f"{type(output).__name__}"
            )
            raise InvalidTypeError(
                f"{type(self._module).__name__}.training_step returned {got}; a client needs the loss of every "
                "minibatch, a scalar or {'loss': scalar, ...}. To leave samples out weigh them with zero."
            )
        return {"loss": loss.squeeze() if loss.numel() == 1 else loss, **logged}

    @contextmanager
    def _opened(self) -> Iterator[dict[str, Any]]:
        """Mark the time of a training step in this thread, and return what takes the values that it logs."""
        logged = self._open[get_ident()] = {}
        trainer = _trainer_of(self._module)
        if trainer is not None:
            self._module.trainer = _TrainerInStep(trainer, self._without_optimizers("trainer.optimizers"))
        try:
            yield logged
        finally:
            del self._open[get_ident()]
            if trainer is not None and not self._open:  # the last of several clients on threads
                self._module.trainer = trainer

    def _without_optimizers(self, asked: str) -> UsageError:
        return UsageError(
            f"{type(self._module).__name__}.training_step asks for self.{asked}, which has the server's optimizer in a "
            "federation. The step size of clients is logged as client_lr in every round: leave it out."
        )

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        """Log a value as the task's own, or gather it during a training step.

        Args:
            name: As ``LightningModule.log`` takes it.
            value: A number, a tensor of one element, or a metric of torchmetrics.
            args: As ``LightningModule.log`` takes them.
            options: Likewise; what is gathered is always a mean.

        Raises:
            RuntimeError: If the value is a dict.
            ValueError: If a training step asks for another reduction than the mean, or for no report at all.
        """
        if get_ident() in self._open:
            bound = inspect.signature(LightningModule.log).bind(self, name, value, *args, **options)
            given = bound.arguments.get("reduce_fx", "mean")
            if not is_mean(given):
                raise InvalidValueError(
                    f"{type(self._module).__name__}.training_step logs '{name}' with reduce_fx={given!r}: what clients "
                    "log is averaged over their steps and over clients. Leave reduce_fx out."
                )
            how = LogOptions.of(name, {**bound.arguments, "gathers": isinstance(value, Metric)})
            self.options[name] = how
            if isinstance(value, Metric):
                self._metrics[name] = value
                if value._forward_cache is None and not how.on_step:
                    return  # it is updated only, and has no value but that of the epoch
            self._open[get_ident()][LOGGED + name] = self._scalar(name, value)
        elif is_attached(self._module, to=self._module):
            base: Any = base_of(self._module)
            base.log(self._module, name, value, *args, **options)
        else:
            self._task.log(name, value, *args, **options)

    def optimizers(self, *args: Any, **options: Any) -> Any:
        """Return the optimizers as Lightning does; in a training step there is none of the client's.

        Raises:
            RuntimeError: If a training step asks for them.
        """
        if get_ident() in self._open:
            raise self._without_optimizers("optimizers()")
        base: Any = base_of(self._module)
        return base.optimizers(self._module, *args, **options)

    def lr_schedulers(self) -> Any:
        """Return the schedulers as Lightning does; in a training step there is none of the client's.

        Raises:
            RuntimeError: If a training step asks for them.
        """
        if get_ident() in self._open:
            raise self._without_optimizers("lr_schedulers()")
        base: Any = base_of(self._module)
        return base.lr_schedulers(self._module)

    def metrics_of_epoch(self) -> dict[str, Tensor]:
        """Return the values of metrics over all minibatches of an epoch, of those that are reported so, by name."""
        return {name: metric.compute() for name, metric in self._metrics.items() if self.options[name].on_epoch}

    def reset_metrics(self) -> None:
        """Reset the metrics that training steps logged, as Lightning does at the end of an epoch."""
        for metric in self._metrics.values():
            metric.reset()

    def _scalar(self, name: str, value: Any) -> Any:
        if isinstance(value, Metric):
            if value._forward_cache is None:
                raise InvalidValueError(
                    f"{type(self._module).__name__}.training_step logs the metric '{name}', which it only updates: its "
                    "value is that of all clients and steps so far. Log it with on_step=False, on_epoch=True, for "
                    "its value over an epoch, or call the metric, as in self.metric(predictions, labels), before it is "
                    "logged: that is the value of the minibatch."
                )
            value = value._forward_cache
        if isinstance(value, Tensor):
            return value.squeeze() if value.numel() == 1 else value
        if isinstance(value, Mapping):
            raise UsageError(f"{type(self._module).__name__} logs '{name}', a dict. Use self.log_dict.")
        return value


class _Answer:
    """Takes the place of a module's method; where the module is copied or pickled, its own is back."""

    def __init__(self, module: Any, method: Callable[..., Any]) -> None:
        self._module = module
        self._method = method

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._method(*args, **options)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._module, self._method.__name__)  # of a copy that has no attributes yet


class _TrainerInStep:
    """Stands for the trainer during a training step, which knows neither the client's optimizer nor its schedulers."""

    def __init__(self, trainer: Any, refusal: UsageError) -> None:
        vars(self).update(trainer=trainer, refusal=refusal)

    def __getattr__(self, name: str) -> Any:
        if name in ("optimizers", "lr_scheduler_configs"):
            raise self.refusal
        return getattr(vars(self)["trainer"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["trainer"], name, value)


def _trainer_of(module: Any) -> Any:
    """Return the trainer of a module, outside of training steps; None at a node, or if there is none."""
    try:
        trainer = module.trainer
    except RuntimeError:
        return None
    return vars(trainer)["trainer"] if isinstance(trainer, _TrainerInStep) else trainer


def is_attached(module: Any, to: Any) -> bool:
    """Return whether a module has a trainer, and this trainer runs the module ``to``."""
    try:
        return module.trainer.lightning_module is to
    except RuntimeError:  # no trainer yet
        return False
