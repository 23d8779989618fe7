"""Evaluation data client by client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedlightning.data.partition import Partition
from fedlightning.data.tensors import as_tensor_data


@dataclass(frozen=True)
class EvaluationPart:
    """What one batch of a :class:`ClientLoader` is.

    Attributes:
        client: Whose samples they are.
        model: ``own`` for the client's own model, ``global`` for the server's.
        index: ``[B]``, positions of the samples in the pooled data.
        last: Whether it is the last batch of this client and model.
    """

    client: int
    model: str
    index: Tensor
    last: bool


class ClientLoader:
    """Batches of one client each, all batches of a client in a row; :attr:`parts` says whose and for which model.

    A batch has the data set's own structure, so a task's ``validation_step`` sees nothing unusual.

    Attributes:
        parts: One a batch.
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
    ) -> None:
        """Cut the clients' samples into batches.

        Args:
            dataset: All clients' samples, pooled.
            partition: Which of them each client holds.
            batch_size: Largest batch.
            models: Every client's samples come once for each of these.
            clients: Clients to take; None for all.
            num_workers: Worker processes for data sets that are not tensors.
        """
        self._dataset = dataset
        self._num_workers = num_workers
        self.clients = len(partition)
        self.parts: list[EvaluationPart] = []
        for client in range(len(partition)) if clients is None else clients:
            pieces = partition[client].split(batch_size)
            for model in models:
                for number, index in enumerate(pieces, start=1):
                    self.parts.append(EvaluationPart(client, model, index, number == len(pieces)))

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Any]:
        tensors = as_tensor_data(self._dataset)
        if tensors is not None:
            return (tensors[part.index] for part in self.parts)
        order = [part.index.tolist() for part in self.parts]
        return iter(DataLoader(self._dataset, batch_sampler=order, num_workers=self._num_workers))
