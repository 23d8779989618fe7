"""Training data validated beside validation data, by steps that do not take the number of a data loader.

With ``validate_train`` Lightning has two loaders to validate, and passes the number of each to ``validation_step``. A
step without an argument ``dataloader_idx`` computes the same of both, so the task names its values: ``val_loss`` of
training data becomes ``global_train_loss``, or ``local_train_loss`` of clients' own models.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from torchmetrics import Metric

_HOOKS = ("validation_step", "on_validation_batch_start", "on_validation_batch_end")


class UnnumberedLoaders:
    """Knows which loader a validation of pooled data is at, where the task's step is not told.

    Attributes:
        are_mixed: Whether a validation ends of which the step has not told validation and training data apart.
    """

    def __init__(self) -> None:
        self.are_mixed = False
        self._are_two = False
        self._number: int | None = None
        self._metrics: list[Metric] = []

    def prepare(self, task: Any, validate_train: bool) -> None:
        """Let Lightning call hooks of a task that take no number of a loader; without two loaders, as they were.

        Args:
            task: Has the hooks.
            validate_train: Whether training data come as a second loader.
        """
        for name in _HOOKS:
            hook = getattr(task, name)
            if validate_train and not takes_number(hook) and not _is_unnumbered(hook):
                setattr(task, name, partial(_without_number, hook))
            elif not validate_train and _is_unnumbered(hook):
                setattr(task, name, hook.args[0])
        self._are_two = validate_train and not takes_number(task.validation_step)

    def begin(self) -> None:
        """Note the beginning of a validation or test."""
        self.are_mixed = False
        self._number = None
        self._metrics = []

    def start_batch(self, number: int) -> None:
        """Note the loader of a batch; metrics begin anew with the second one, when Lightning has those of the first."""
        if self._number is not None and number != self._number:
            for metric in self._metrics:
                metric.reset()
            self._metrics = []
        self._number = number

    def end(self) -> bool:
        """Note the end of the loaders, and return whether the step has not told them apart."""
        mixes = self._are_two and self._number == 1
        self._number = None
        return mixes

    def named(self, name: str, value: Any, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return the name and the options under which a value of a batch is logged.

        Args:
            name: As the task calls it.
            value: A number, or a metric, which is computed and reset between the loaders.
            options: Of ``LightningModule.log``.
        """
        if not self._are_two or self._number is None:
            return name, options
        if isinstance(value, Metric):
            self._metrics.append(value)
        return on_training_data("global", name) if self._number else name, {**options, "add_dataloader_idx": False}


def takes_number(hook: Callable[..., Any]) -> bool:
    """Return whether a hook of Lightning takes the number of a data loader."""
    takes = inspect.signature(hook).parameters
    return not _is_unnumbered(hook) and (
        "dataloader_idx" in takes or any(each.kind is each.VAR_POSITIONAL for each in takes.values())
    )


def on_training_data(whose: str, name: str) -> str:
    """Return the name of a value of training data.

    Args:
        whose: ``local`` for clients' own models, ``global`` for the server's.
        name: As the task calls it of validation data.
    """
    return f"{whose}_train_{name.removeprefix('val_')}"


def _without_number(hook: Callable[..., Any], *args: Any) -> Any:
    """Call a hook without the number of the loader, and without whatever else it does not take."""
    return hook(*args[: len(inspect.signature(hook).parameters)])


def _is_unnumbered(hook: Any) -> bool:
    return isinstance(hook, partial) and hook.func is _without_number
