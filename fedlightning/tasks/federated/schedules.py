"""The options of a module's optimizer over the rounds of a fit, as its schedulers set them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from math import isfinite
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fedlightning.core.errors import InvalidTypeError, InvalidValueError, UsageError
from fedlightning.core.schedule import Schedule
from fedlightning.core.validation import require_argument
from fedlightning.schedules.stepping import Turn, options_of, options_over_rounds, put_back
from fedlightning.tasks.federated.optimizers import Configured
from fedlightning.tasks.federated.plateau import Plateau
from fedlightning.tasks.federated.scheduler_config import SchedulerConfig


@dataclass(frozen=True)
class Tabulated(Schedule):
    """Takes its values from a table; after the last entry it stays where it is.

    Args:
        values: The value of each round, at least one.
        scheduler: Class name of what gave the values, for messages.
    """

    values: tuple[float, ...]
    scheduler: str = "a table"

    def __post_init__(self) -> None:
        if not self.values:
            raise InvalidValueError("Tabulated(values=()): expected at least one value.")
        for value in self.values:
            require_argument(self, "values", value)
        object.__setattr__(self, "landmarks", (0, self.values.index(min(self.values))))

    def __repr__(self) -> str:
        return f"<{self.scheduler} over {len(self.values)} rounds>"

    def __call__(self, rounds: int) -> float:
        """Return the value of the round that follows ``rounds`` others."""
        return self.values[min(rounds, len(self.values) - 1)]


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
    before = options_of(optimizer)
    try:
        table = list(islice(options_over_rounds(optimizer, turns), int(rounds)))
    finally:
        put_back(optimizer, before)
    made_by = ", ".join(type(turn.scheduler).__name__ for turn in turns)
    return [
        {**group, **{name: _over_rounds([row[number][name] for row in table], made_by) for name in table[0][number]}}
        for number, group in enumerate(optimizer.param_groups)
    ]


def without_step_size(configured: Configured) -> Configured:
    """Leave out schedulers of a step size that is not used; one that also cycles momentum stays.

    Args:
        configured: What ``configure_optimizers`` returned.
    """
    kept = tuple(each for each in configured.schedulers if _cycles_momentum(each))
    return replace(configured, schedulers=kept, ignores_schedule=len(kept) < len(configured.schedulers))


def _cycles_momentum(given: Any) -> bool:
    scheduler = given.get("scheduler") if isinstance(given, Mapping) else given
    parts = getattr(scheduler, "_schedulers", ())  # of SequentialLR and ChainedScheduler
    return bool(getattr(scheduler, "cycle_momentum", False)) or any(map(_cycles_momentum, parts))


def warn_of_kept(module: Any, optimizer: Any, schedulers: Sequence[Any]) -> None:
    """Warn if a module keeps what schedules its step size, which no round keeps up to date.

    Args:
        module: The module.
        optimizer: Of the module, as it was returned by ``configure_optimizers``.
        schedulers: Returned beside it.
    """
    configs = [SchedulerConfig.of(given) for given in schedulers]
    if not configs or any(config.waits for config in configs):
        return
    scheduling = [optimizer, *(config.scheduler for config in configs)]
    kept = next((name for name, value in vars(module).items() if any(value is each for each in scheduling)), None)
    if kept is not None:
        rank_zero_warn(
            f"{type(module).__name__}.{kept} does not follow the rounds: the values of all rounds are found out before "
            "the first, where schedulers stand at their end afterwards and optimizers at their start. The step size of "
            "a round is logged as client_lr; read nothing of it."
        )


def warn_of_other_epochs(trainer: Trainer, schedulers: Sequence[Any]) -> None:
    """Warn if schedulers that are stepped once an epoch would be stepped in the midst of the Trainer's epochs.

    Args:
        trainer: Before the first round of a fit.
        schedulers: As ``configure_optimizers`` returns them.
    """
    length: Any = trainer.num_training_batches
    by_epoch = [each for each in map(SchedulerConfig.of, schedulers) if each.interval == "epoch" and not each.waits]
    done = trainer.fit_loop.batch_idx
    before = trainer.global_step - (done if done < length else 0)  # of an epoch that has ended, the next one counts
    if by_epoch and before % length:
        rank_zero_warn(
            f"{type(by_epoch[0].scheduler).__name__} is stepped every {length} rounds, counted from the first. This "
            f"fit goes on in an epoch that began after {before} rounds, because epochs were of another length before "
            "or one was cut short: it is stepped in the midst of them."
        )


@contextmanager
def without_clock(module: Any) -> Iterator[None]:
    """Refuse to tell a module its epoch or step, while schedulers run through the rounds of a fit before the first."""
    try:
        trainer = module.trainer
    except RuntimeError:  # at a node
        trainer = None
    module.trainer = _WithoutClock(trainer)
    try:
        yield
    finally:
        module.trainer = trainer


class _WithoutClock:
    """Stands for a trainer that knows all but the time."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def __getattr__(self, name: str) -> Any:
        if name in ("current_epoch", "global_step"):
            raise UsageError(
                f"a scheduler of configure_optimizers reads self.{name}: the values of all rounds are found out before "
                "the first, when it is 0. Take what the scheduler counts, as in LambdaLR(optimizer, lambda count: ...)."
            )
        return getattr(self._trainer, name)


def plateau_of(schedulers: Sequence[Any]) -> Plateau | None:
    """Return the scheduler that waits for a metric; None if there is none.

    Args:
        schedulers: As ``configure_optimizers`` returns them.

    Raises:
        ValueError: If there are others beside it, or it names no metric.
    """
    configs = [SchedulerConfig.of(given) for given in schedulers]
    waiting = next((config for config in configs if config.waits), None)
    if waiting is None:
        return None
    if len(configs) > 1:
        others = ", ".join(type(config.scheduler).__name__ for config in configs)
        raise InvalidValueError(
            f"configure_optimizers returns {others}: one that waits for a metric goes with no other. Return one."
        )
    return Plateau(waiting.scheduler, waiting.monitor, waiting.strict, waiting.frequency)


def _turn(given: Any, epoch: int) -> Turn:
    config = SchedulerConfig.of(given)
    if not isinstance(config.scheduler, LRScheduler):
        raise InvalidTypeError(f"configure_optimizers returns {given!r} as a scheduler: expected one of torch.")
    if config.interval == "epoch":
        return Turn(config.scheduler, config.frequency * epoch)
    return Turn(config.scheduler, config.frequency, epoch)  # as Lightning counts the batches of an epoch


def _over_rounds(values: Sequence[Any], made_by: str) -> Any:
    """Return one value if all are the same, else a schedule; of tuples entry by entry."""
    if isinstance(values[0], tuple):
        return tuple(_over_rounds(column, made_by) for column in zip(*values, strict=True))
    return Tabulated(tuple(values), made_by) if any(a != b for a, b in pairwise(values)) else values[0]
