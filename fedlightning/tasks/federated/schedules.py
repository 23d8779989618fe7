"""The options of a module's optimizer over the rounds of a fit, as its schedulers set them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.schedule import Schedule
from fedlightning.core.validation import require_argument
from fedlightning.tasks.federated.plateau import Plateau

_VARYING = ("lr", "momentum", "betas", "weight_decay")
"""Options that schedulers of torch set; the learning rate, and momentum in cycles."""


@dataclass(frozen=True)
class Tabulated(Schedule):
    """Takes its values from a table; after the last entry it stays where it is.

    Args:
        values: The value of each round, at least one.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise InvalidValueError("Tabulated(values=()): expected at least one value.")
        for value in self.values:
            require_argument(self, "values", value)

    def __call__(self, rounds: int) -> float:
        """Return the value of the round that follows ``rounds`` others."""
        return self.values[min(rounds, len(self.values) - 1)]


@dataclass(frozen=True)
class _Turn:
    """Describes when a scheduler is stepped.

    Attributes:
        scheduler: A scheduler of torch.
        every: Number of rounds between its steps.
    """

    scheduler: Any
    every: int


def scheduled_groups(
    optimizer: Optimizer,
    schedulers: Sequence[Any],
    length: Callable[[], tuple[float, float]],
    plateau: Plateau | None = None,
) -> list[dict[str, Any]]:
    """Return the parameter groups of an optimizer, with schedules in place of what its schedulers change.

    As with a Trainer, a scheduler with the interval ``epoch``, the default, is stepped once an epoch of the Trainer,
    and one with the interval ``step`` at every training step, which is a round. The schedulers are run through here, so
    that the values of a round are known to every client, and in every process.

    Args:
        optimizer: Of the module; its options are put back afterwards.
        schedulers: As ``configure_optimizers`` returns them.
        length: Returns the number of rounds of the fit, and of an epoch; called if there are schedulers.
        plateau: The only scheduler, if it waits for a metric.

    Raises:
        TypeError: If a scheduler is none of torch's.
        ValueError: If the fit has no end.
    """
    if not schedulers:
        return [dict(group) for group in optimizer.param_groups]
    if plateau is not None:
        return [{**group, "lr": lr} for group, lr in zip(optimizer.param_groups, plateau.schedules, strict=True)]
    rounds, epoch = length()
    if not isfinite(rounds):
        raise InvalidValueError(
            f"{type(_turn(schedulers[0], 1).scheduler).__name__}: the values of all rounds are found out before the "
            "first, and this fit has no end. Set max_epochs or max_steps of the Trainer."
        )
    turns = [_turn(given, int(epoch)) for given in schedulers]
    table = []
    for done in range(1, int(rounds) + 1):
        table.append([{name: group[name] for name in _VARYING if name in group} for group in optimizer.param_groups])
        optimizer.step()  # moves nothing, as there are no gradients; schedulers warn without it
        for turn in turns:
            if done % turn.every == 0:
                turn.scheduler.step()
    groups = []
    for number, group in enumerate(optimizer.param_groups):
        group |= table[0][number]
        groups.append(
            {**group, **{name: _over_rounds([row[number][name] for row in table]) for name in table[0][number]}}
        )
    return groups


def plateau_of(schedulers: Sequence[Any]) -> Plateau | None:
    """Return the scheduler that waits for a metric; None if there is none.

    Args:
        schedulers: As ``configure_optimizers`` returns them.

    Raises:
        ValueError: If there are others beside it, or it names no metric.
    """
    configs = [_config(given) for given in schedulers]
    waiting = [config for config in configs if isinstance(config["scheduler"], ReduceLROnPlateau)]
    if not waiting:
        return None
    if len(configs) > 1:
        others = ", ".join(type(config["scheduler"]).__name__ for config in configs)
        raise InvalidValueError(
            f"configure_optimizers returns {others}: one that waits for a metric goes with no other. Return one."
        )
    return Plateau(waiting[0]["scheduler"], waiting[0].get("monitor"), bool(waiting[0].get("strict", True)))


def _config(given: Any) -> dict[str, Any]:
    return {"scheduler": None, **given} if isinstance(given, Mapping) else {"scheduler": given}


def _turn(given: Any, epoch: int) -> _Turn:
    config = _config(given)
    scheduler = config["scheduler"]
    name = type(scheduler).__name__
    if not isinstance(scheduler, LRScheduler):
        raise InvalidTypeError(f"configure_optimizers returns {given!r} as a scheduler: expected one of torch.")
    interval = config.get("interval", "epoch")
    if interval not in ("epoch", "step"):
        raise InvalidValueError(f"{name}: interval={interval!r}: expected 'epoch' or 'step'.")
    return _Turn(scheduler, int(config.get("frequency", 1)) * (epoch if interval == "epoch" else 1))


def _over_rounds(values: Sequence[Any]) -> Any:
    """Return one value if all are the same, else a schedule; of tuples entry by entry."""
    if isinstance(values[0], tuple):
        return tuple(_over_rounds(column) for column in zip(*values, strict=True))
    numbers = [float(value) if isinstance(value, Tensor) else value for value in values]
    return Tabulated(tuple(numbers)) if any(a != b for a, b in pairwise(numbers)) else numbers[0]
