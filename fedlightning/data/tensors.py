"""Data sets held as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, TensorDataset

from fedlightning.data.cohort import Transform
from fedlightning.nested import flatten, map_tensors


@dataclass(frozen=True)
class TensorData(Dataset[Any]):
    """Samples held as tensors, in any nesting; the fast path of federated training.

    Attributes:
        tensors: Leaves ``[n, ...]``.
        transform: Applied to every batch after gathering, on the device (bytes to real numbers, say).
    """

    tensors: Any
    transform: Transform | None = None

    def __len__(self) -> int:
        return len(flatten(self.tensors)[0][0])

    def __getitem__(self, index: Any) -> Any:
        """A sample, or a batch for a slice or an index tensor."""
        item = map_tensors(lambda t: t[index], self.tensors)
        return item if self.transform is None else self.transform(item)


def as_tensor_data(dataset: Dataset[Any]) -> TensorData | None:
    """The data set as tensors, if it is made of tensors."""
    if isinstance(dataset, TensorData):
        return dataset
    if isinstance(dataset, TensorDataset):
        return TensorData(tuple(dataset.tensors))
    return None
