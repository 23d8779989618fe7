"""Federated data from data sets of users' own, one a client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.core.tree import flatten
from fedlightning.data.described import Sizes
from fedlightning.data.federation import Federation
from fedlightning.data.module import FederatedDataModule
from fedlightning.data.partition import Partition
from fedlightning.data.pooling import pool, size_of
from fedlightning.data.tensors import as_tensor_data

HeldOut = Dataset[Any] | Sequence[Dataset[Any] | None] | None
"""Validation or test data: for the global model, one data set a client, or none."""


class ClientDatasets(FederatedDataModule):
    """Holds one data set per client; :meth:`FederatedDataModule.from_datasets` returns an object of this class."""

    SPOKEN_NAME: ClassVar[str] = "FederatedDataModule.from_datasets"

    def __init__(
        self,
        clients: Sequence[Dataset[Any]],
        val_dataset: HeldOut = None,
        test_dataset: HeldOut = None,
        **options: Any,
    ) -> None:
        """Store the clients' data sets.

        Args:
            clients: One data set a client, each with at least one sample.
            val_dataset: Validation data of the global model; or a list, one data set a client, for models of their own.
            test_dataset: Test data, likewise.
            options: Arguments of :class:`FederatedDataModule`.
        """
        super().__init__(**options)
        self.clients = list(clients)
        self.val_dataset = val_dataset
        self.test_dataset = test_dataset

    def build(self) -> Federation:
        """Pool the clients' samples into one data set per stage.

        Raises:
            TypeError: If something is no data set with a length, or its tensors cannot be gathered from.
            ValueError: If a client has no training samples, or the lists do not go with each other.
        """
        sizes = _checked_sizes("train", self.clients)
        without = [client for client, size in enumerate(sizes) if not size]
        if without:
            raise InvalidValueError(
                f"train: Client {without[0]} has no samples ({len(without)} of {len(self.clients)} data sets are null "
                "or empty). Leave such clients out of train, val and test."
            )
        train, partition = pool(self.clients)
        val, val_partition = self._held_out("val", self.val_dataset)
        test, test_partition = self._held_out("test", self.test_dataset)
        return Federation(
            train, partition, val=val, test=test, val_partition=val_partition, test_partition=test_partition
        )

    def _known_sizes(self) -> Mapping[str, Sizes] | None:
        """Return the lengths of the data sets; None if something is no data set with one."""
        parts: dict[str, Any] = {"train": self.clients, "val": self.val_dataset, "test": self.test_dataset}
        try:
            return {
                name: [size_of(each) for each in part] if isinstance(part, list | tuple) else size_of(part)
                for name, part in parts.items()
                if part is not None
            }
        except TypeError:
            return None

    def _held_out(self, name: str, given: HeldOut) -> tuple[Dataset[Any] | None, Partition | None]:
        if not isinstance(given, list | tuple):
            if given is not None and not _checked_size(given, f"{name}: the data set"):
                raise InvalidValueError(f"{name}: the data set is empty. Give null for no {name} data.")
            return given, None  # type: ignore[return-value]
        if len(given) != len(self.clients):
            raise InvalidValueError(
                f"{name}: a list of {len(given)} data sets for {len(self.clients)} clients. Give one a client in the "
                "order of train, null for a client without, or one data set for the global model."
            )
        if not any(_checked_sizes(name, given)):
            raise InvalidValueError(
                f"{name}: all {len(given)} data sets are null or empty. Give null for no {name} data."
            )
        return pool(given)


def _checked_sizes(name: str, clients: Sequence[Dataset[Any] | None]) -> list[int]:
    return [
        _checked_size(dataset, f"{name}: the data set of client {client}") for client, dataset in enumerate(clients)
    ]


def _checked_size(given: Any, which: str) -> int:
    """Return the number of samples of a data set given by the user; 0 for None.

    Raises:
        TypeError: If it is no data set from which samples can be gathered; ``which`` names it in the message.
    """
    remedy = "expected a data set with __len__ and __getitem__"
    if isinstance(given, type) or not (given is None or hasattr(given, "__getitem__")):
        shown = given.__name__ if isinstance(given, type) else type(given).__name__
        raise InvalidTypeError(
            f"{which} is {shown}: {remedy}. Samples that come one after the other go into a list first."
        )
    if isinstance(given, tuple | Tensor | str | Mapping):
        raise InvalidTypeError(f"{which} is a {type(given).__name__}: {remedy}, e.g. TensorDataset(inputs, targets).")
    _require_dense(given, which)
    try:
        return size_of(given)
    except Exception as error:
        name = type(given).__name__
        raise InvalidTypeError(
            f"{which}, {name}, has no length: {type(error).__name__}: {error}. {remedy[0].upper()}{remedy[1:]}."
        ) from error


def _require_dense(dataset: Dataset[Any] | None, which: str) -> None:
    tensors = as_tensor_data(dataset)
    for tensor in [] if tensors is None else flatten(tensors.tensors)[0]:
        if tensor.is_meta or tensor.layout != torch.strided:
            raise InvalidTypeError(
                f"{which} holds a tensor of {'the meta device' if tensor.is_meta else str(tensor.layout)}, whose "
                "samples cannot be gathered. Give dense tensors (.to_dense()) with data."
            )
