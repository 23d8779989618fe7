"""Tasks whose evaluation runs many clients' models at once."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch

from fedlightning.oracle.vectorized import CACHE_BYTES
from fedlightning.tasks.base import FederatedLightningModule


class BatchedEvaluationTask(FederatedLightningModule):
    """A task that is evaluated in two steps: what the model makes of a batch, and what is logged of that.

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
        """What the model makes of a batch; a sample's predictions must not depend on the others of the batch.

        Runs under ``torch.func.vmap`` like :meth:`objective`, and must draw no random numbers.

        Args:
            batch: One client's samples in the data set's own structure, leaves ``[B, ...]``.

        Returns:
            A tensor ``[B, ...]``, or several in dicts, lists and tuples.
        """

    @abstractmethod
    def evaluate(self, stage: str, batch: Any, predictions: Any) -> None:
        """Log metrics, as a ``validation_step`` would.

        Args:
            stage: ``val`` or ``test``. With ``validate_train`` ``local_train`` for every client's training data, or
                ``global_train`` for all clients' where there is only the global model.
            batch: As given to :meth:`predictions`.
            predictions: What :meth:`predictions` returned.
        """

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Predict and evaluate."""
        train = "local_train" if self.evaluated_models else "global_train"
        self._evaluate_batch(("val", train)[dataloader_idx], batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        """Predict and evaluate."""
        self._evaluate_batch("test", batch)

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """As Lightning's; names have the stage in them, so data loaders are told apart without their numbers."""
        super().log(name, value, *args, **{**kwargs, "add_dataloader_idx": False})

    def evaluated_together(self, stage: str) -> int:
        """As many models as fit: into the caches on a CPU, into a quarter of the free memory elsewhere."""
        mine, name = type(self), "validation_step" if stage == "val" else "test_step"
        if getattr(mine, name) is not getattr(BatchedEvaluationTask, name):
            return 1
        free = torch.cuda.mem_get_info(self.device)[0] // 4 if self.device.type == "cuda" else CACHE_BYTES
        return max(1, free // sum(p.numel() * p.element_size() for p in self.parameters()))

    def _evaluate_batch(self, stage: str, batch: Any) -> None:
        together = self.evaluation_session.together
        if together is None:
            self.evaluate(stage, batch, self.predictions(batch))
        else:
            together(stage, batch)
