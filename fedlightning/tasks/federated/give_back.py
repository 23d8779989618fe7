"""The end of a fit, at which trainer and module get back what was changed for its time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from lightning.pytorch import Callback, LightningModule, Trainer


class Taken(Protocol):
    """Keeps something of a trainer's or a module's for the time of a fit."""

    def give_back(self, trainer: Any) -> None:
        """Give it back; nothing happens if nothing was taken."""


class GiveBack(Callback):
    """Gives back what was taken when a fit has ended, or failed."""

    def __init__(self, taken: Sequence[Taken]) -> None:
        """Keep what may have been taken."""
        self._taken = taken

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give it back after a fit."""
        for each in self._taken:
            each.give_back(trainer)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give it back after a failure."""
        for each in self._taken:
            each.give_back(trainer)
