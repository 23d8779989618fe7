"""Fits of one task that would draw the same cohorts and minibatches once more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from fedlightning.data.module import FederatedDataModule

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule


@dataclass
class _Drawn:
    """Says of how many rounds the fits of a task have drawn cohorts, minibatches and noise.

    Attributes:
        seed: Of the data of the last fit.
        until: Number of rounds, from the first, that each seed has drawn.
    """

    seed: int
    until: dict[int, int] = field(default_factory=dict)


_DRAWN: WeakKeyDictionary[FederatedLightningModule, _Drawn] = WeakKeyDictionary()


def repeated_rounds(task: FederatedLightningModule, data: FederatedDataModule) -> int:
    """Return how many rounds of other fits of a task a fit that begins now would draw again; 0 if it is resumed.

    Draws are functions of the data's seed and the number of the round, which is the Trainer's.

    Args:
        task: Attached to a trainer.
        data: Of the fit.
    """
    drawn, rounds = _DRAWN.get(task), task.run.rounds
    if drawn is None:
        drawn = _DRAWN[task] = _Drawn(data.seed)
    else:
        drawn.until[drawn.seed] = max(drawn.until.get(drawn.seed, 0), rounds)
        drawn.seed = data.seed
    until, trainer = drawn.until.get(data.seed, 0), task.trainer
    return until if not trainer.ckpt_path and trainer.global_step < until else 0


def say_what_is_drawn_again(task: FederatedLightningModule, data: FederatedDataModule, repeated: int) -> None:
    """Say that a fit draws what another fit of the task has drawn, which a loop over short fits hardly wants.

    Args:
        task: Attached to a trainer.
        data: Of the fit.
        repeated: Number of rounds of other fits that are drawn again.
    """
    partial = data.participation.fewest(data.num_clients) < data.num_clients
    if not repeated or (not partial and all(phase.data == "full" for phase in task.algorithm.phases)):
        return
    (rank_zero_warn if partial else rank_zero_info)(
        f"{type(task).__name__}: this Trainer begins at round 1 again, with the {'cohorts and ' if partial else ''}"
        f"minibatches of the {repeated} rounds of another fit. To go on instead, give trainer.fit the ckpt_path of a "
        "checkpoint, raise the rounds of one Trainer, or give the data module another seed."
    )
