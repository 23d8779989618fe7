"""Schedules that follow PyTorch's learning rate schedulers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.schedule import Schedule
from fedlightning.core.validation import require
from fedlightning.schedules.stepping import Turn, options_over_rounds

LRSchedulerCallable = Callable[[Optimizer], LRScheduler]

EXAMPLE = "functools.partial(torch.optim.lr_scheduler.StepLR, step_size=30)"


@dataclass(frozen=True, eq=False)
class FromTorch(Schedule):
    """Takes the learning rates of a scheduler of ``torch.optim.lr_scheduler`` that is stepped once a round.

    The scheduler drives an optimizer that moves nothing; what it does to other options (momentum) has no effect. Its
    learning rates are computed once from the start, so that a round's value depends on the round alone.

    Args:
        start: Learning rate of the optimizer that the scheduler is given.
        scheduler: Makes the scheduler, e.g. ``functools.partial(torch.optim.lr_scheduler.StepLR, step_size=30)``.
    """

    start: float
    scheduler: LRSchedulerCallable

    def __post_init__(self) -> None:
        require(self, "start", at_least=0.0)
        if not callable(self.scheduler):
            raise InvalidTypeError(
                f"FromTorch(scheduler={self.scheduler!r}): expected something that makes one, e.g. {EXAMPLE}."
            )
        self(0)

    def __call__(self, rounds: int) -> float:
        """Return the learning rate after ``rounds`` steps of the scheduler.

        Raises:
            Exception: What the scheduler raises if it cannot take that many steps.
        """
        if rounds >= len(self._rates):
            self._rates[:] = self._computed(rounds, 2 * rounds + 100)
        return self._rates[rounds]

    @cached_property
    def _rates(self) -> list[float]:
        """Learning rates of the first rounds, as far as they have been computed."""
        return []

    def _computed(self, needed: int, wanted: int) -> list[float]:
        """Return the learning rates after 0 to ``wanted`` steps, or fewer from ``needed`` on if these are the last."""
        optimizer = SGD([torch.nn.Parameter(torch.zeros(1))], lr=self.start, momentum=0.9)  # some set the momentum
        try:
            scheduler: Any = self.scheduler(optimizer)
        except Exception as error:
            raise InvalidValueError(f"FromTorch(scheduler={self.scheduler!r}): it cannot be made: {error}") from error
        if isinstance(scheduler, ReduceLROnPlateau):
            raise InvalidValueError(
                "FromTorch(scheduler=ReduceLROnPlateau): it waits for a metric, but clients know the round alone."
            )
        if not isinstance(scheduler, LRScheduler):
            raise InvalidTypeError(
                f"FromTorch(scheduler=...) made {scheduler!r}: expected a torch.optim.lr_scheduler, e.g. {EXAMPLE}."
            )
        rates: list[float] = []
        try:
            for (group,) in islice(options_over_rounds(optimizer, [Turn(scheduler)]), wanted + 1):
                rates.append(group["lr"])
        except Exception:
            if len(rates) <= needed:
                raise
        return rates
