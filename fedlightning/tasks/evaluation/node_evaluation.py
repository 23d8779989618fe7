"""Validation and test at a node, which measures its clients' models with their own data and sends metrics."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torch.utils.data import Dataset
from torchmetrics import Metric

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.data.evaluation import ClientLoader, dtype_of
from fedlightning.data.module import FederatedDataModule
from fedlightning.federation.protocol import EvaluationAnswer, EvaluationRequest, Precision
from fedlightning.federation.remote.shard import OwnPositions
from fedlightning.federation.sampling.round_plan import ClientPositions

if TYPE_CHECKING:
    from fedlightning.tasks.base import FederatedLightningModule

STEPS = {"val": "validation_step", "test": "test_step"}
"""The method of a task that measures, by stage."""


class NodeEvaluator:
    """Measures the models of a node's clients by the task's ``validation_step`` and ``test_step``.

    It is the :class:`~fedlightning.federation.transport.Evaluator` of a node. There is no Trainer: hooks on batches are
    called, those of epochs are not, and ``self.trainer`` does not exist.
    """

    def __init__(self, task: FederatedLightningModule, data: FederatedDataModule, places: Mapping[int, int]) -> None:
        """Take what a node works with.

        Args:
            task: The node's task, whose ``run.simulation`` computes its clients.
            data: The node's data.
            places: Number of each of the node's clients in ``data``, by the client's id in the federation.
        """
        self._task: Any = task
        self._data = data
        self._places = dict(places)
        task.client_models.adapt_on(data, self._places)

    def answers(self, request: EvaluationRequest, client_ids: Sequence[int]) -> Iterator[EvaluationAnswer]:
        """Yield what clients measured; nothing if they have no data for it, or the task no step.

        Raises:
            InvalidValueError: If the data do not say which samples each client holds, or a metric over all clients
                would need their samples.
        """
        if not is_overridden(STEPS[request.stage], self._task):
            return
        session = self._task.evaluation_session
        for metric in self._task.modules():  # an evaluation that failed left a client's samples in them
            if isinstance(metric, Metric):
                metric.reset()
        evaluation = session.begin(request)
        try:
            with _evaluating(self._task, request.precision):
                for number, loader in self._loaders(request.stage, client_ids).items():
                    self._measure(evaluation, request.stage, loader, number)
            yield from evaluation.answers(client_ids)
        finally:
            session.close()

    def _measure(self, evaluation: Any, stage: str, loader: ClientLoader, number: int) -> None:
        """Pass all batches of a loader to the task's step."""
        task, step = self._task, getattr(self._task, STEPS[stage])
        takes = inspect.signature(step).parameters
        own = {"dataloader_idx": number} if "dataloader_idx" in takes else {}
        for index, batch in enumerate(loader):
            evaluation.start_batch(loader, index, number)
            step(_placed(task, batch, number), *([index] if len(takes) - len(own) > 1 else []), **own)
            evaluation.finish_batch()

    def _loaders(self, stage: str, client_ids: Sequence[int]) -> dict[int, ClientLoader]:
        """Return the loaders of evaluation data, and of training data if they are validated too, by number."""
        federation, data = self._data.federation, self._data
        found = {}
        if stage == "test":
            parts = {0: (federation.test, federation.test_partition)}
        else:
            parts = {0: (federation.val, federation.val_partition)}
            if data.validate_train:
                parts[1] = (federation.train, federation.partition)
        for number, (dataset, partition) in parts.items():
            if dataset is not None:
                positions = OwnPositions(positions_of(stage, dataset, partition, data), self._places)
                found[number] = ClientLoader(
                    dataset,
                    positions,
                    data.eval_batch_size,
                    self._task.evaluated_models or ("shared",),
                    client_ids,
                    data.num_workers,
                    self._task.evaluated_together(stage),
                    TaskArchitectures(self._task).of,
                    dtype_of(self._task),
                )
        return found


def positions_of(
    stage: str, dataset: Any, partition: ClientPositions | None, data: FederatedDataModule
) -> ClientPositions:
    """Return which samples of a part of the data each client holds; all are those of the only client.

    Args:
        stage: The part, ``val`` or ``test``.
        dataset: Its samples.
        partition: What the data say of who holds which; None if they do not.
        data: The node's data.

    Raises:
        InvalidValueError: If there are several clients, and the data do not say it.
    """
    if partition is not None:
        return partition
    if len(data.federation.partition) == 1:
        return _AllOfOne(dataset)
    raise InvalidValueError(
        f"The node's data do not say which {stage} samples each client holds. Give {stage} as a list, one data set a "
        f"client, to FederatedDataModule.from_datasets, or set {stage}_partition in the data module's Federation."
    )


@dataclass(frozen=True)
class _AllOfOne:
    """Says that all samples are those of one client."""

    dataset: Dataset[Any]

    @property
    def sizes(self) -> Tensor:
        """The number of samples, ``[1]``."""
        return torch.tensor([len(self.dataset)])  # type: ignore[arg-type]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, client: int) -> Tensor:
        return torch.arange(len(self.dataset))  # type: ignore[arg-type]


@contextmanager
def _evaluating(task: Any, precision: Precision) -> Iterator[None]:
    """Evaluate as a Trainer does: in inference mode, modules in evaluation mode, in the precision of the server."""
    modes = {module: module.training for module in task.modules()}
    task.eval()
    enabled = precision.dtype is not None
    try:
        with torch.inference_mode(), torch.autocast(task.device.type, dtype=precision.dtype, enabled=enabled):
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _placed(task: Any, batch: Any, number: int) -> Any:
    """Return a batch on the task's device, passed through the task's hooks on batches."""
    batch = task.on_before_batch_transfer(batch, number)
    batch = task.transfer_batch_to_device(batch, task.device, number)
    return task.on_after_batch_transfer(batch, number)
