"""Freed memory that is kept for the time of a fit."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from fedlightning.core.memory import give_back_freed_memory, keep_freed_memory


class KeptMemory(Callback):
    """Gives the memory that rounds have freed back to the system when a fit ends, whether or not it succeeds.

    A hook of the task would be skipped by an exception, or by a task that overrides it. A callback's ``teardown`` and
    ``on_exception`` are called in all ends of a fit.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self._keeps = False

    @classmethod
    def during_fit(cls, trainer: Any) -> None:
        """Keep freed memory until a trainer's fit has ended.

        Args:
            trainer: Is about to fit; it has one such callback from then on.
        """
        found = next((each for each in trainer.callbacks if isinstance(each, cls)), None)
        if found is None:
            found = cls()
            trainer.callbacks.append(found)
        keep_freed_memory()
        found._keeps = True

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Give it back after a fit."""
        self._give_back()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give it back after a failure or an interrupt."""
        self._give_back()

    def _give_back(self) -> None:
        if self._keeps:
            give_back_freed_memory()
        self._keeps = False
