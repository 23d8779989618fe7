"""Functions that join the data sets of many clients into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset

from fedlightning.core.tree import flatten, map_tensors
from fedlightning.data.partition import Partition
from fedlightning.data.tensors import MixedTensorData, TensorData, as_tensor_data


def pool(clients: Sequence[Dataset[Any] | None]) -> tuple[Dataset[Any], Partition]:
    """Join the clients' data sets, at least one of which has samples, into one data set.

    Tensors become one tensor for each shape of samples, so that they can be gathered by index. Clients whose samples
    have one shape stand next to each other, else clients keep their order.

    Args:
        clients: Each client's data set; None or an empty one for a client without samples.

    Returns:
        All clients' samples, and which of them each client holds.
    """
    given = {client: dataset for client, dataset in enumerate(clients) if dataset is not None and size_of(dataset)}
    groups: dict[Any, list[int]] = {}
    for client, dataset in given.items():
        groups.setdefault(_shape(dataset), []).append(client)
    if None in groups:
        groups = {None: list(given)}
    order = [client for group in groups.values() for client in group]
    sizes = [size_of(given[client]) for client in order]
    positions = dict(zip(order, torch.arange(sum(sizes)).split(sizes), strict=True))
    partition = Partition.of((positions.get(client, ()) for client in range(len(clients))), allow_empty=True)
    pools = [_concatenated([given[client] for client in group]) for group in groups.values()]
    return pools[0] if len(pools) == 1 else MixedTensorData(pools), partition  # type: ignore[arg-type]


def size_of(dataset: Dataset[Any] | None) -> int:
    """Return the number of samples of a data set; 0 for None."""
    return 0 if dataset is None else len(dataset)  # type: ignore[arg-type]


def _shape(dataset: Dataset[Any]) -> Any:
    """Return the properties that samples of one tensor must share; None for samples that are not tensors."""
    data = as_tensor_data(dataset)
    if data is None or data.transform is not None:
        return None
    leaves, structure = flatten(data.tensors)
    return structure, tuple(leaf.shape[1:] for leaf in leaves)


def _concatenated(clients: Sequence[Dataset[Any]]) -> Dataset[Any]:
    parts = [as_tensor_data(client) for client in clients]
    if any(part is None or part.transform is not None for part in parts):
        return ConcatDataset(clients)

    def join(*leaves: Tensor) -> Tensor:
        return torch.cat(leaves)

    return TensorData(map_tensors(join, *(part.tensors for part in parts if part is not None)))
