"""Fits of one task that would draw the same cohorts and minibatches once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from fedlightning.data.module import FederatedDataModule
from fedlightning.data.remote import RemoteClients

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule


def note_draws(task: FederatedLightningModule) -> None:
    """Note that a round was drawn, after it."""
    data: Any = task.trainer.datamodule  # type: ignore[attr-defined]
    if isinstance(data, FederatedDataModule | RemoteClients):
        drawn = task.run.drawn
        drawn[data.seed] = max(drawn.get(data.seed, 0), task.run.rounds)


def repeated_rounds(task: FederatedLightningModule, data: Any) -> int:
    """Return how many rounds of other fits of a task a fit that begins now would draw again; 0 if it is resumed.

    Draws are functions of the data's seed and the number of the round, which is the Trainer's.

    Args:
        task: Attached to a trainer.
        data: The data module of the fit.
    """
    if not isinstance(data, FederatedDataModule | RemoteClients):
        return 0
    until, trainer = task.run.drawn.get(data.seed, 0), task.trainer
    return until if not trainer.ckpt_path and trainer.global_step < until else 0


def say_what_is_drawn_again(task: FederatedLightningModule, data: Any, repeated: int) -> None:
    """Say that a fit draws what another fit of the task has drawn, which a loop over short fits hardly wants.

    Args:
        task: Attached to a trainer.
        data: The data module of the fit.
        repeated: Number of rounds of other fits that are drawn again.
    """
    partial = data.participation.fewest(data.num_clients) < data.num_clients
    if not partial and all(phase.data == "full" for phase in task.algorithm.phases):
        return
    what = "cohorts and minibatches" if partial else "minibatches"
    (rank_zero_warn if partial else rank_zero_info)(
        f"{type(task).__name__}: this Trainer begins at round {task.trainer.global_step + 1} again, where seed="
        f"{data.seed} of the data has drawn the {what} of {repeated} rounds of another fit. To go on instead, give "
        "trainer.fit the ckpt_path of a checkpoint, raise the rounds of one Trainer, or take another seed."
    )
