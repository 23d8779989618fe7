"""The data sets of a federation, and which client holds which samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedlightning.core.errors import InvalidTypeError, InvalidValueError
from fedlightning.data.partition import Partition
from fedlightning.data.tensors import in_memory, shape_of_samples, stored_samples
from fedlightning.federation.sampling.sources import Source


@dataclass(frozen=True)
class Federation:
    """Holds the data sets of a federation and the samples of each client.

    Attributes:
        train: All clients' samples, pooled.
        partition: Which of them each client holds.
        val: Validation data; None for no validation.
        test: Test data.
        predict: Data to predict; the test data if None.
        val_partition: Which validation samples each client holds, where clients have models of their own to validate;
            some may hold none (``allow_empty``). The data set may hold further samples, as ``train`` may.
        test_partition: Likewise of the test data.

    Raises:
        TypeError: If a partition is something else, such as a list of lists.
        ValueError: If a client has no training samples, or samples that the data set has not.
    """

    train: Dataset[Any]
    partition: Partition
    val: Dataset[Any] | None = None
    test: Dataset[Any] | None = None
    predict: Dataset[Any] | None = None
    val_partition: Partition | None = None
    test_partition: Partition | None = None

    def __post_init__(self) -> None:
        for name in ("partition", "val_partition", "test_partition"):
            given = getattr(self, name)
            if not isinstance(given, Partition) and (given is not None or name == "partition"):
                raise InvalidTypeError(
                    f"Federation({name}=...) is a {type(given).__name__}. Pass a Partition; "
                    "Partition.of([[0, 2], [1]]) makes one of every client's samples."
                )
        empty = (self.partition.sizes == 0).nonzero().flatten().tolist()
        if empty:
            shown = ", ".join(map(str, empty[:10])) + (", ..." if len(empty) > 10 else "")
            raise InvalidValueError(
                f"Federation(partition=...): {len(empty)} of {len(self.partition)} clients have no training samples: "
                f"{shown}. Leave such clients out, of val_partition and test_partition too; allow_empty is for these."
            )
        _require_positions("partition", self.partition, "train", self.train)
        _require_positions("val_partition", self.val_partition, "val", self.val)
        _require_positions("test_partition", self.test_partition, "test", self.test)

    @property
    def validates_on_test(self) -> bool:
        """Whether the validation data are the test data."""
        theirs, tested = self.val_partition, self.test_partition
        same = theirs is tested or (theirs is not None and tested is not None and theirs.digest == tested.digest)
        return self.val is not None and self.val is self.test and same

    def source(self) -> Source | None:
        """Return the source of the training samples if they lie in memory; None if they have to be loaded."""
        tensors = in_memory(self.train)
        return None if tensors is None else tensors.source()

    def shape_of(self, positions: Tensor) -> int:
        """Return the number of the shape that the training samples at ``positions [n]`` share; 0 if all have one."""
        return shape_of_samples(self.train, positions)

    def stored(self, positions: Tensor) -> list[Tensor]:
        """Return what is known of the training samples at ``positions [n]`` without loading them, ``[n, ...]``."""
        return stored_samples(self.train, positions)


def _require_positions(name: str, partition: Partition | None, whole: str, dataset: Any) -> None:
    """Refuse a partition with positions that its data set has not, which end in an error once they are drawn."""
    if partition is None or not hasattr(dataset, "__len__") or not len(partition.order):
        return
    order, size = partition.order, len(dataset)
    if order.min() >= 0 and order.max() < size:
        return
    place = ((order < 0) | (order >= size)).nonzero()[0]
    client = int(torch.searchsorted(partition.offsets, place, right=True)) - 1
    raise InvalidValueError(
        f"Federation({name}=...): client {client} holds sample {int(order[place])}, but {whole} has {size} samples. "
        f"Give positions from 0 on and below {size}."
    )
