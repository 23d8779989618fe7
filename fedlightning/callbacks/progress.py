"""A progress bar that counts rounds."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

from fedlightning.core.validation import require


class RoundProgressBar(ProgressBar):
    """Shows one bar over all communication rounds of a fit, with the latest metrics behind it.

    Args:
        refresh_rate: Rounds between updates, at least 1.
    """

    def __init__(self, refresh_rate: int = 1) -> None:
        super().__init__()
        self.refresh_rate = refresh_rate
        require(self, "refresh_rate", at_least=1, whole=True)
        self._bar: tqdm[Any] | None = None
        self._messages = ExitStack()
        self._enabled = True

    def disable(self) -> None:
        """Show no bar."""
        self._enabled = False

    def enable(self) -> None:
        """Show the bar again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open the bar at the present round."""
        total = rounds_in_total(trainer)
        self._bar = tqdm(
            desc="Round", total=total, initial=trainer.global_step, disable=not self._enabled, dynamic_ncols=True
        )
        if not self._bar.disable:  # messages stand above the bar, not behind it
            self._messages.enter_context(logging_redirect_tqdm([logging.getLogger(name) for name in _LOGGERS]))

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the bar to the present round."""
        if self._bar is not None and trainer.global_step % self.refresh_rate == 0:
            self._bar.update(trainer.global_step - self._bar.n)
            shown = self.get_metrics(trainer, pl_module)
            self._bar.set_postfix({k: v for k, v in shown.items() if k != "v_num"}, refresh=False)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.update(trainer.global_step - self._bar.n)
        self._close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Close the bar where it stands."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        self._messages.close()

    def print(self, *args: Any, sep: str = " ", **kwargs: Any) -> None:
        """Print a message above the bar."""
        tqdm.write(sep.join(map(str, args)))


_LOGGERS = ("lightning.pytorch", "lightning.fabric")


def rounds_in_total(trainer: Trainer) -> int | None:
    """Return the number of rounds of a whole fit; None if it has no end."""
    limits = [trainer.max_steps] if trainer.max_steps >= 0 else []
    if trainer.max_epochs is not None and trainer.max_epochs >= 0:
        limits.append(int(trainer.max_epochs * trainer.num_training_batches))
    return min(limits) if limits else None
