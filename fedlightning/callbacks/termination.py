"""The callback that lets SIGTERM end several processes between two rounds."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class EndTogether(Callback):
    """Has SIGTERM noted by each of several processes, which end before the next round.

    Lightning's handler asks all processes at once, from wherever the signal strikes. A process that waits for others in
    the middle of a round does not answer, and all wait until the limit of their group, half an hour. Lightning asks
    before every round, too, which is enough.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the place of the handler before Lightning registers it, for this fit."""
        connector: Any = trainer._signal_connector
        launcher: Any = trainer.strategy.launcher
        if trainer.world_size == 1:
            return

        def note(number: int, frame: Any) -> None:
            if not connector.received_sigterm and launcher is not None:
                launcher.kill(number)
            connector.received_sigterm = True

        connector._sigterm_notifier_fn = note

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Give the handler back."""
        connector: Any = trainer._signal_connector
        vars(connector).pop("_sigterm_notifier_fn", None)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Give the handler back after a fit that was cut short."""
        self.on_fit_end(trainer, pl_module)
