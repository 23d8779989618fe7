"""A base for tasks that evaluate the models of many clients at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from fedlightning.oracle.vectorized import CACHE_BYTES
from fedlightning.tasks.base import FederatedLightningModule


class BatchedEvaluationTask(FederatedLightningModule):
    """Splits evaluation into two steps: predictions of the model on a batch, and metrics of these predictions.

    Where clients have models of their own, the first step, :meth:`predictions`, runs for many clients at once, and the
    second, :meth:`evaluate`, with every client's part. A subclass writes both in place of ``validation_step`` and
    ``test_step``::

        class Regression(BatchedEvaluationTask):
            personal_parameters = ("offset",)

            def predictions(self, batch):
                x, y = batch
                return self.line(x).squeeze(1) + self.offset

            def evaluate(self, stage, batch, predictions):
                self.log(f"{stage}_mse", (predictions - batch[1]).square().mean(), batch_size=len(predictions))

    Predictions that ``torch.func.vmap`` refuses are computed one client after the other, and a message says so. A
    subclass that writes its own ``validation_step`` or ``test_step`` is validated or tested one client after the other.
    """

    @abstractmethod
    def predictions(self, batch: Any) -> Any:
        """Compute what the model predicts for a batch.

        The method runs under ``torch.func.vmap`` like :meth:`objective`. It must draw no random numbers, and the
        predictions of a sample must not depend on the other samples of the batch.

        Args:
            batch: One client's samples in the data set's own structure, leaves ``[B, ...]``.

        Returns:
            A tensor ``[B, ...]``, or several in dicts, lists and tuples.
        """

    @abstractmethod
    def evaluate(self, stage: str, batch: Any, predictions: Any) -> None:
        """Log metrics of predictions, as a ``validation_step`` would.

        Args:
            stage: ``val`` or ``test``. With ``validate_train`` also ``local_train`` for the training data of a client,
                or ``global_train`` for the training data of all clients where there is only the global model.
            batch: As given to :meth:`predictions`.
            predictions: What :meth:`predictions` returned.
        """

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Predict for a batch of validation data, and log metrics of the predictions."""
        train = "local_train" if self.evaluated_models else "global_train"
        self._evaluate_batch(("val", train)[dataloader_idx], batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Predict for a batch of test data, and log metrics of the predictions."""
        self._evaluate_batch("test", batch)

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Log a value under its name alone; the stage in the name tells data loaders apart without their numbers."""
        super().log(name, value, *args, **{**kwargs, "add_dataloader_idx": False})

    def evaluated_together(self, stage: str) -> int:
        """Return how many models fit into the caches of a CPU, or into a quarter of the free memory of a GPU."""
        mine, name = type(self), "validation_step" if stage == "val" else "test_step"
        if getattr(mine, name) is not getattr(BatchedEvaluationTask, name):
            return 1
        free = torch.cuda.mem_get_info(self.device)[0] // 4 if self.device.type == "cuda" else CACHE_BYTES
        return max(1, free // sum(p.numel() * p.element_size() for p in self.parameters()))

    def _evaluate_batch(self, stage: str, batch: Any) -> None:
        if not self.evaluation_session.takes_over(stage, batch):
            self.evaluate(stage, batch, self.predictions(batch))
