"""Samples of clients that a ``DataLoader`` brings, in the order in which rounds ask for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from fedlightning.core.errors import FedlightningError
from fedlightning.core.seeding import seed_device
from fedlightning.oracle.python_generators import python_generators_restored, seed_python


class SampleError(FedlightningError, RuntimeError):
    """Tells of a client's data set that did not give its samples; the message names round and client."""


@dataclass(frozen=True)
class SampleRequest:
    """Asks for the samples of one client.

    Attributes:
        round_index: Round for which they are needed, from 0.
        client: Number of the client.
        positions: Positions of the samples in the pooled data set.
        seed: Seeds what the data set draws meanwhile, such as an augmentation.
    """

    round_index: int
    client: int
    positions: list[int]
    seed: int


class LoadedSamples(Iterator[Any]):
    """Brings the samples of one request after another, leaves ``[n, ...]``.

    Worker processes may be asked for the samples of requests ahead. What a data set draws from the global generators of
    PyTorch, Python and NumPy is the same in every process, and leaves these as they were.
    """

    def __init__(self, dataset: Dataset[Any], requests: Iterable[SampleRequest], num_workers: int) -> None:
        """Start loading.

        Args:
            dataset: The pooled data set.
            requests: What is asked for, in order; taken one by one as the loader goes on.
            num_workers: Number >= 0 of worker processes.
        """
        self._open: deque[SampleRequest] = deque()
        loader = DataLoader(
            _Seeded(dataset),
            batch_sampler=_noting(requests, self._open),
            num_workers=num_workers,
            persistent_workers=False,
        )
        self._loader = iter(loader)

    def __next__(self) -> Any:
        """Return the samples of the next request.

        Raises:
            SampleError: If the data set raises an error.
        """
        try:
            item = next(self._loader)
        except Exception as error:
            if not self._open:  # the end, or an error of whoever makes the requests
                raise
            raise _sample_error(self._open[0], error) from error
        self._open.popleft()
        return item


class _Seeded(Dataset[Any]):
    """Gives the samples of a request, drawn from its seed."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self._dataset = dataset

    def __getitems__(self, request: SampleRequest) -> Any:
        several = getattr(self._dataset, "__getitems__", None)
        on_gpu = torch.cuda.is_initialized()  # where a data set may draw as well; no worker process has one
        device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
        with torch.random.fork_rng(devices=[device] if on_gpu else []), python_generators_restored():
            seed_device(device, request.seed)
            seed_python(request.seed)
            return several(request.positions) if several else [self._dataset[place] for place in request.positions]


def _noting(requests: Iterable[SampleRequest], handed_out: deque[SampleRequest]) -> Iterator[Any]:
    """Give the loader each request, and note which it was given.

    Not a method: the loader must not refer back to the object that holds it, or worker processes would live on until
    Python collects cycles.
    """
    for request in requests:
        handed_out.append(request)
        yield request


_PADDING = "Samples of different lengths need padding in the data set (torch.nn.functional.pad). "


def _sample_error(request: SampleRequest, error: Exception) -> SampleError:
    lines = str(error).strip().splitlines() or [""]
    of_worker = "in DataLoader worker process" in lines[0]  # the cause is the last line of its traceback
    said = lines[-1] if of_worker else f"{type(error).__name__}: {lines[0]}"
    return SampleError(
        f"Round {request.round_index + 1}: the samples of client {request.client} could not be loaded: {said}. "
        f"{_PADDING if 'stack expects each tensor' in said else ''}Model and states are those before this round."
    )
