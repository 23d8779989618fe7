"""Loaders of evaluation data: pooled for one global model, or client by client for models of clients' own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler, default_collate, default_convert

from fedlightning.core.tree import map_tensors
from fedlightning.data.tensors import TensorData, as_tensor_data, in_memory, shape_of_samples
from fedlightning.federation.sampling.minibatches import repeat_last
from fedlightning.federation.sampling.round_plan import ClientPositions

Signature = tuple[str, str, int]
"""What the parts of a batch must share: model, architecture, and shape of samples."""


class PooledLoader(DataLoader[Any]):
    """Yields evaluation data that are not assigned to clients.

    The loader comes from a data module that has warned already where a task's personal parameters play no part.

    Attributes:
        in_every_process: Whether every process has all of the data.
    """

    in_every_process = False


def pooled_loader(
    data: Dataset[Any],
    batch_size: int,
    num_workers: int,
    dtype: torch.dtype | None = None,
    in_every_process: bool = False,
) -> PooledLoader:
    """Return a loader of all samples of a data set, in their order.

    Args:
        data: The data set; tensors are sliced, without collating sample by sample.
        batch_size: Samples of a batch.
        num_workers: Number of worker processes for data sets that are not tensors.
        dtype: Dtype of real numbers; None leaves them as they are.
        in_every_process: Whether each of several processes goes through all of the data. Lightning would divide them,
            and repeat samples, or batches of tensors, until all processes have equally many.
    """
    tensors = as_tensor_data(data)
    items: Dataset[Any] = data if tensors is None else _Batches(tensors, batch_size)
    sampler: Sampler[Any] | None = None
    if in_every_process:
        sampler = DistributedSampler(items, num_replicas=1, rank=0, shuffle=False)
    if tensors is None:
        collate = partial(_cast_after, default_collate, dtype)
        loader = PooledLoader(
            items, batch_size=batch_size, sampler=sampler, num_workers=num_workers, collate_fn=collate
        )
    else:
        convert = partial(_cast_after, default_convert, dtype)
        loader = PooledLoader(items, batch_size=None, sampler=sampler, collate_fn=convert)
    loader.in_every_process = in_every_process
    return loader


def dtype_of(task: Any) -> torch.dtype | None:
    """Return the dtype of a task's parameters, in which clients get real numbers; None if it has none.

    Trained parameters have one dtype, and decide.
    """
    parameters = [each for each in task.parameters() if each.is_floating_point()]
    parameters.sort(key=lambda each: not each.requires_grad)
    return parameters[0].dtype if parameters else None


@dataclass(frozen=True)
class EvaluationPart:
    """Names samples of one client that are evaluated together.

    Attributes:
        client: Number of the client whose samples these are.
        model: ``own`` for the client's own model, ``global`` for the server's beside it; ``shared`` for the server's
            where it is the only one.
        index: ``[B]``, positions of the samples in the pooled data.
        last: Whether no further part of this client and model follows.
    """

    client: int
    model: str
    index: Tensor
    last: bool


class ClientLoader:
    """Yields batches of evaluation data that hold one client each, or several clients side by side.

    A batch of one client has the data set's own structure, so a task's ``validation_step`` sees nothing unusual. With
    ``at_once`` > 1 a batch holds several clients, leaves ``[S, B, ...]``, B the number of samples of the largest; the
    last sample of each other client is repeated. Clients of like size stand together, ``batch_size`` bounds S * B. A
    client with more samples than ``batch_size`` has batches of its own, all in a row.

    Attributes:
        batches: The parts of each batch.
        grouped: Whether batches have the leading dimension S.
        num_clients: Number N of clients of the federation.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        partition: ClientPositions,
        batch_size: int,
        models: Sequence[str] = ("own",),
        clients: Iterable[int] | None = None,
        num_workers: int = 0,
        at_once: int = 1,
        architecture: Callable[[int], str] = lambda client: "",
        dtype: torch.dtype | None = None,
    ) -> None:
        """Cut the clients' samples into batches.

        Args:
            dataset: All clients' samples, pooled.
            partition: Which of them each client holds; clients without samples are left out.
            batch_size: Largest number of samples in a batch, >= 1.
            models: ``own``, ``global`` or both, or ``shared``: every client's samples come once for each of these.
            clients: Numbers of the clients to take; None for all.
            num_workers: Number of worker processes for data sets that are not tensors.
            at_once: Largest number of clients in a batch, >= 1.
            architecture: Function from the number of a client to the name of its architecture; the clients of a batch
                share the architecture and the shape of their samples.
            dtype: Dtype of real numbers; None leaves them as they are.
        """
        self._dataset = dataset
        self._num_workers = num_workers
        self._dtype = dtype
        self.num_clients = len(partition)
        self.grouped = at_once > 1
        parts = _parts(partition, range(len(partition)) if clients is None else clients, models, batch_size)
        self.batches = (
            _side_by_side(parts, batch_size, at_once, self._signature(architecture))
            if self.grouped
            else [(part,) for part in parts]
        )

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        order = [_padded(parts) for parts in self.batches]
        tensors = in_memory(self._dataset)
        loaded = (
            DataLoader(self._dataset, batch_sampler=[i.tolist() for i in order], num_workers=self._num_workers)
            if tensors is None
            else (tensors[index] for index in order)
        )
        for parts, drawn in zip(self.batches, loaded, strict=True):
            batch = _cast(drawn, self._dtype)
            yield map_tensors(partial(torch.unflatten, dim=0, sizes=(len(parts), -1)), batch) if self.grouped else batch

    def _signature(self, architecture: Callable[[int], str]) -> Callable[[EvaluationPart], Signature]:
        """Return a function that returns the properties in which all parts of a batch must agree."""

        def signature(part: EvaluationPart) -> Signature:
            return part.model, architecture(part.client), shape_of_samples(self._dataset, part.index)

        return signature


def _cast_after(collate: Callable[[Any], Any], dtype: torch.dtype | None, samples: Any) -> Any:
    return _cast(collate(samples), dtype)


def _cast(batch: Any, dtype: torch.dtype | None) -> Any:
    """Return a batch with its real numbers in ``dtype``, as clients get them in training."""
    if dtype is None:
        return batch
    return apply_to_collection(batch, Tensor, lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf)


@dataclass(frozen=True)
class _Batches(Dataset[Any]):
    """Returns whole batches of tensor data as items, which avoids collating sample by sample."""

    data: TensorData
    size: int

    def __len__(self) -> int:
        return -(-len(self.data) // self.size)

    def __getitem__(self, index: int) -> Any:
        if index >= len(self):
            raise IndexError(index)
        return self.data[index * self.size : (index + 1) * self.size]


def _parts(
    partition: ClientPositions, clients: Iterable[int], models: Sequence[str], batch_size: int
) -> list[EvaluationPart]:
    """Cut the samples of each client into parts of at most ``batch_size``, once for each model."""
    parts = []
    for client in clients:
        pieces = [piece for piece in partition[client].split(batch_size) if len(piece)]
        for model in models:
            for number, index in enumerate(pieces, start=1):
                parts.append(EvaluationPart(client, model, index, last=number == len(pieces)))
    return parts


def _side_by_side(
    parts: list[EvaluationPart], batch_size: int, at_once: int, signature: Callable[[EvaluationPart], Signature]
) -> list[tuple[EvaluationPart, ...]]:
    """Group clients of one architecture and similar size; clients with several parts come last, one by one."""
    pieces = Counter((part.model, part.client) for part in parts)
    whole: dict[Signature, list[EvaluationPart]] = {}
    for part in parts:
        if pieces[part.model, part.client] == 1:
            whole.setdefault(signature(part), []).append(part)
    batches: list[tuple[EvaluationPart, ...]] = []
    for alike in whole.values():
        alike.sort(key=lambda part: -len(part.index))
        start = 0
        while start < len(alike):
            stop = start + max(1, min(at_once, batch_size // len(alike[start].index)))
            batches.append(tuple(alike[start:stop]))
            start = stop
    return batches + [(part,) for part in parts if pieces[part.model, part.client] > 1]


def _padded(parts: Sequence[EvaluationPart]) -> Tensor:
    """Return the positions of all parts, each part padded to the longest by repeating the last position."""
    longest = max(len(part.index) for part in parts)
    return torch.cat([repeat_last(part.index, longest) for part in parts])
