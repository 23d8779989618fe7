"""The choice of a task's evaluation loaders: pooled data, or each client's data for the client's own model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from fedlightning.core.errors import InvalidValueError, NoSuchClientError
from fedlightning.core.per_architecture import TaskArchitectures
from fedlightning.core.settings import settings
from fedlightning.core.tree import map_tensors
from fedlightning.data.evaluation import ClientLoader, dtype_of, pooled_loader
from fedlightning.data.federation import Federation
from fedlightning.data.partition import Partition
from fedlightning.data.tensors import MixedTensorData, TensorData, as_tensor_data
from fedlightning.federation.processes import held_by

Loader = DataLoader[Any] | ClientLoader | list[Any]
"""Evaluation data of one kind; an empty list for none."""


@dataclass(frozen=True)
class EvaluationLoaders:
    """Makes the evaluation loaders of a federation for one task.

    Data come pooled where the task has a global model alone, and client by client where clients have models of their
    own and the federation says which samples each client holds.

    Attributes:
        federation: The data sets.
        batch_size: Largest number of samples in a batch.
        num_workers: Number of worker processes for data sets that are not tensors.
        task: The Lightning module that is evaluated; None while there is no trainer.
        rank: Number of this process, from 0, which evaluates the clients whose states lie in it.
        num_processes: Number of processes.
    """

    federation: Federation
    batch_size: int
    num_workers: int
    task: Any = None
    rank: int = 0
    num_processes: int = 1

    def val(self) -> Loader:
        """Return the loader of the validation data."""
        return self._evaluated("val", self.federation.val, self.federation.val_partition)

    def train(self) -> Loader:
        """Return the loader that evaluates the training data beside the validation data."""
        if self._models:
            return self._evaluated("val", self.federation.train, self.federation.partition)
        return self._pooled(self.federation.train, self.federation.partition)

    def test(self) -> Loader:
        """Return the loader of the test data."""
        return self._evaluated("test", self.federation.test, self.federation.test_partition)

    def predict(self) -> Loader:
        """Return the loader of the federation's prediction data, or of the test data if there are none.

        Raises:
            IndexError: If the task's ``predict_client`` is not a client of the federation.
            ValueError: If this client has no test samples, or there are several processes.
        """
        federation, test = self.federation, self.federation.test
        if federation.predict is None and test is None:
            self._warn_of_nothing("test")
            return []
        if federation.predict is not None or federation.test_partition is None:
            self._warn_of_shared_predictions()
        if federation.predict is not None:
            return self._pooled(federation.predict, divided=True)
        assert test is not None
        if federation.test_partition is None or not self._models:
            return self._pooled(test, federation.test_partition, divided=True)
        client = self.task.predict_client
        if client is None:
            chosen: Iterable[int] = self._clients_here(federation.test_partition)
        else:
            self._require_predictable(client, federation.test_partition)
            chosen = [client]
        return self._by_client(test, federation.test_partition, chosen, ("own",))

    @property
    def _models(self) -> tuple[str, ...]:
        """Return which models of each client are evaluated; empty if the task has only a global model."""
        models: tuple[str, ...] = getattr(self.task, "evaluated_models", ())
        return models

    def _evaluated(self, stage: str, dataset: Dataset[Any] | None, partition: Partition | None) -> Loader:
        if dataset is None:
            self._warn_of_nothing(stage)
            return []
        if partition is None and self._models:
            self._report_missing_partition(stage)
        if partition is None or not self._models:
            return self._pooled(dataset, partition)
        clients, at_once = self._clients_here(partition), self.task.evaluated_together(stage)
        return self._by_client(dataset, partition, clients, self._models, at_once)

    def _pooled(self, dataset: Dataset[Any], partition: Partition | None = None, divided: bool = False) -> Loader:
        """Return a loader of the samples that clients hold; of all samples if ``partition`` is None.

        Args:
            dataset: Has the samples.
            partition: Which of them clients hold.
            divided: Whether Lightning divides the batches among several processes; otherwise each has all of them, so
                that all values are those of one process.

        Raises:
            ValueError: If there are fewer batches than processes that divide them.
        """
        if isinstance(dataset, MixedTensorData):
            raise InvalidValueError(
                "Samples of several shapes cannot be evaluated as one data set. Evaluate them client by client: give "
                "val, test or predict one data set a client, to a task with personal_parameters."
            )
        data = dataset if partition is None else _subset(dataset, partition.order)
        everywhere = self.num_processes > 1 and not divided
        loader = pooled_loader(data, self.batch_size, self.num_workers, self._dtype, everywhere)
        if divided and len(loader) < self.num_processes:
            raise InvalidValueError(
                f"The data to predict are {len(loader)} batch{'es' * (len(loader) > 1)}, fewer than the "
                f"{self.num_processes} processes that divide them. Use fewer devices, or a smaller eval_batch_size."
            )
        return loader

    @property
    def _dtype(self) -> torch.dtype | None:
        return None if self.task is None else dtype_of(self.task)

    def _by_client(
        self,
        dataset: Dataset[Any],
        partition: Partition,
        clients: Iterable[int],
        models: tuple[str, ...],
        at_once: int = 1,
    ) -> ClientLoader:
        architecture = TaskArchitectures(self.task).of
        return ClientLoader(
            dataset, partition, self.batch_size, models, clients, self.num_workers, at_once, architecture, self._dtype
        )

    def _clients_here(self, partition: Partition) -> range:
        """Return the clients whose states lie in this process.

        Raises:
            ValueError: If one of several processes has no client with samples.
        """
        sizes, count = partition.sizes, self.num_processes
        if count > 1 and any(not sizes[rank::count].any() for rank in range(count)):
            raise InvalidValueError(
                f"The evaluation data are those of {int((sizes > 0).sum())} clients, and none of them is with one of "
                f"the {count} processes (client i is with process i modulo {count}), which the others would wait for. "
                "Use fewer devices, or give more clients evaluation data."
            )
        return held_by(self.rank, count, len(partition))

    def _require_predictable(self, client: int, partition: Partition) -> None:
        if not 0 <= client < len(partition):
            raise NoSuchClientError(f"predict_client={client}: the federation has clients 0 to {len(partition) - 1}.")
        if not len(partition[client]):
            raise InvalidValueError(
                f"predict_client={client}: this client has no test samples. Choose one that has some."
            )
        if self.num_processes > 1:
            raise InvalidValueError(
                f"predict_client={client} with {self.num_processes} processes: the client's model lies in one of "
                "them. Predict on one device."
            )

    def _report_missing_partition(self, stage: str) -> None:
        """Warn that clients' own models cannot be evaluated, and name what is evaluated in their place."""
        text = (
            f"{type(self.task).__name__}: clients have models of their own, but the data do not say which {stage} "
            f"samples each client holds. Give {stage} as a list, one data set a client, to "
            f"FederatedDataModule.from_datasets, or set {stage}_partition in the data module's Federation."
        )
        if self.task.per_client_evaluation:
            raise InvalidValueError(text)
        if self.task.personal_parameters:
            rank_zero_warn(f"{text} The shared parameters are evaluated with the personal ones of the start.")
        else:
            buffers = " with the buffers of the start" if self.task.federation_options.buffers == "local" else ""
            rank_zero_warn(f"{text} The global model is evaluated{buffers}.")

    def _warn_of_nothing(self, stage: str) -> None:
        """Warn where data are missing that were asked for; a fit goes without validation."""
        trainer = getattr(self.task, "trainer", None)
        if trainer is not None and trainer.state.fn != "fit":
            rank_zero_warn(
                f"The data module has no {stage} data: nothing to {trainer.state.fn.value}. Give {stage} to "
                "FederatedDataModule.from_datasets, or set it in the data module's Federation."
            )

    def _warn_of_shared_predictions(self) -> None:
        if getattr(self.task, "personal_parameters", ()) and self.task.predict_client is None:
            rank_zero_warn(
                f"{type(self.task).__name__}: the data to predict are nobody's, so the shared parameters predict with "
                f"the personal ones of the start. Set {settings({'model.predict_client': ...})} to predict with a "
                "client's own model."
            )


def _subset(dataset: Dataset[Any], index: Tensor) -> Dataset[Any]:
    tensors = as_tensor_data(dataset)
    if tensors is None:
        return Subset(dataset, index.tolist())
    return TensorData(map_tensors(lambda t: t[index], tensors.tensors), tensors.transform)
