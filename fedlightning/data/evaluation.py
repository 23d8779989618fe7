"""Evaluation data client by client."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedlightning.core.tree import map_tensors
from fedlightning.data.partition import Partition
from fedlightning.data.tensors import MixedTensorData, as_tensor_data

Kind = tuple[str, str, int]
"""Model, architecture, and shape of samples."""


@dataclass(frozen=True)
class EvaluationPart:
    """Samples of one client that are evaluated together.

    Attributes:
        client: Whose samples they are.
        model: ``own`` for the client's own model, ``global`` for the server's.
        index: ``[B]``, positions of the samples in the pooled data.
        last: Whether it is the last part of this client and model.
    """

    client: int
    model: str
    index: Tensor
    last: bool


class PooledLoader(DataLoader[Any]):
    """Evaluation data of nobody's in particular, from a data module that says what this means for personal parts."""


class ClientLoader:
    """Batches of one client each, or of several clients side by side.

    A batch of one client has the data set's own structure, so a task's ``validation_step`` sees nothing unusual. With
    ``at_once`` > 1 a batch holds several clients, leaves ``[S, B, ...]``, B the samples of the largest; the others'
    last sample is repeated. Clients of like size stand together, ``batch_size`` bounds S * B. A client with more
    samples than that has batches of its own, all in a row.

    Attributes:
        batches: The parts of each batch.
        grouped: Whether batches have the leading dimension S.
        clients: Number N of clients of the federation.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        partition: Partition,
        batch_size: int,
        models: Sequence[str] = ("own",),
        clients: Iterable[int] | None = None,
        num_workers: int = 0,
        at_once: int = 1,
        architecture: Callable[[int], str] = lambda client: "",
    ) -> None:
        """Cut the clients' samples into batches.

        Args:
            dataset: All clients' samples, pooled.
            partition: Which of them each client holds; clients without samples are left out.
            batch_size: Largest batch.
            models: Every client's samples come once for each of these.
            clients: Clients to take; None for all.
            num_workers: Worker processes for data sets that are not tensors.
            at_once: Largest number of clients in a batch.
            architecture: A client's architecture; a batch's clients share it, and the shape of their samples.
        """
        self._dataset = dataset
        self._num_workers = num_workers
        self.clients = len(partition)
        self.grouped = at_once > 1
        parts: list[EvaluationPart] = []
        for client in range(len(partition)) if clients is None else clients:
            pieces = [piece for piece in partition[client].split(batch_size) if len(piece)]
            for model in models:
                for number, index in enumerate(pieces, start=1):
                    parts.append(EvaluationPart(client, model, index, number == len(pieces)))
        self.batches = (
            _side_by_side(parts, batch_size, at_once, self._kind(architecture))
            if self.grouped
            else [(part,) for part in parts]
        )

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        order = [_padded(parts) for parts in self.batches]
        mixed = self._dataset if isinstance(self._dataset, MixedTensorData) else None
        tensors = as_tensor_data(self._dataset) or mixed
        loaded = (
            DataLoader(self._dataset, batch_sampler=[i.tolist() for i in order], num_workers=self._num_workers)
            if tensors is None
            else (tensors[index] for index in order)
        )
        for parts, batch in zip(self.batches, loaded, strict=True):
            yield map_tensors(partial(torch.unflatten, dim=0, sizes=(len(parts), -1)), batch) if self.grouped else batch

    def _kind(self, architecture: Callable[[int], str]) -> Callable[[EvaluationPart], Kind]:
        """What parts of a batch must agree in."""
        dataset = self._dataset

        def kind(part: EvaluationPart) -> Kind:
            shape = dataset.shape_of(int(part.index[0])) if isinstance(dataset, MixedTensorData) else 0
            return part.model, architecture(part.client), shape

        return kind


def _side_by_side(
    parts: list[EvaluationPart], batch_size: int, at_once: int, kind: Callable[[EvaluationPart], Kind]
) -> list[tuple[EvaluationPart, ...]]:
    """Parts of whole clients in groups of one kind and like size; those of clients in several parts one by one."""
    pieces: dict[tuple[str, int], int] = {}
    for part in parts:
        key = (part.model, part.client)
        pieces[key] = pieces.get(key, 0) + 1
    whole: dict[Kind, list[EvaluationPart]] = {}
    for part in parts:
        if pieces[part.model, part.client] == 1:
            whole.setdefault(kind(part), []).append(part)
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
    """Positions of all parts in a row, each filled up with its last to the length of the longest."""
    longest = max(len(part.index) for part in parts)
    return torch.cat([torch.cat([part.index, part.index[-1:].expand(longest - len(part.index))]) for part in parts])
