"""The callback for evaluations in which every process goes through all of the data."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import CombinedLoader

from fedlightning.data.evaluation import ClientLoader, PooledLoader
from fedlightning.metrics.alone import alone


class EvaluateInEveryProcess(Callback):
    """Has metrics of torchmetrics computed without the other processes where these have the same pooled data.

    Joined with theirs, every sample would count once for each process. The same is so after a fit of several processes,
    where one of them evaluates with a Trainer of its own, for which the others would not wait.
    """

    def __init__(self) -> None:
        self._held = ExitStack()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin, if the data come from a federated data module, and some of them pooled."""
        loaders = CombinedLoader(trainer.test_dataloaders if trainer.testing else trainer.val_dataloaders).flattened
        pooled = [each for each in loaders if not isinstance(each, ClientLoader)]  # others are put together by client
        whole = bool(pooled) and all(isinstance(each, PooledLoader) and each.in_every_process for each in pooled)
        session: Any = getattr(pl_module, "evaluation_session", None)
        if session is None or not (whole or trainer.world_size == 1):
            return
        session.is_in_every_process = whole
        self._held.enter_context(alone(pl_module))

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """End; metrics have been computed."""
        self._held.close()
        if hasattr(pl_module, "evaluation_session"):
            pl_module.evaluation_session.is_in_every_process = False

    on_test_start = on_validation_start
    on_test_end = on_validation_end

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End an evaluation that was cut short."""
        self.on_validation_end(trainer, pl_module)
