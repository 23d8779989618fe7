"""Clients' own models where a method makes them of the global one by local steps, each time they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.adaptation import AdaptsInUse
from fedlightning.algorithms.base import Phase
from fedlightning.core.errors import UsageError
from fedlightning.core.modules import named_modules
from fedlightning.core.seeding import derive_seed
from fedlightning.federation.clients.client_group import ClientGroup
from fedlightning.federation.clients.client_table import ClientTable
from fedlightning.federation.remote.shard import Shard
from fedlightning.federation.sampling.cohort import Cohort
from fedlightning.federation.sampling.round_plan import RoundData
from fedlightning.oracle import GradientOracle, Sequential


class TrainingData:
    """Gives the minibatches on which clients adapt the global model: those of their first round, always the same.

    Attributes:
        data: The data module that has them.
    """

    def __init__(
        self, data: RoundData, places: Mapping[int, int] | None, architecture: Callable[[int], str], steps: int | None
    ) -> None:
        """Take the data of clients.

        Args:
            data: A :class:`~fedlightning.data.FederatedDataModule`.
            places: Number of each client in ``data``, by the client's id in the federation; None if they are the same.
            architecture: Function from a client's id to the name of its architecture.
            steps: Number of minibatches of a client; None for as many as a round's local steps take.
        """
        self.data = data
        every = range(len(data.federation.partition))
        phase = Phase(None, None, None, steps=steps)  # type: ignore[arg-type]  # only what it asks of data is read
        self._shard = Shard(
            data, [phase], dict(zip(every, every, strict=True)) if places is None else places, architecture
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> TrainingData:
        """Share the samples, as a copy of a task does not train on other ones."""
        return self

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Leave clients' samples out of a file that holds the task: where it is read they are not at hand."""
        return type(None), ()

    def of(self, client: int, device: torch.device, dtype: torch.dtype) -> Cohort:
        """Return a client with its minibatches on a device, real numbers in ``dtype``."""
        return self._shard.trial(client, device, dtype)


def adapted(
    group: ClientGroup,
    algorithm: AdaptsInUse,
    data: TrainingData | None,
    client_ids: Sequence[int],
    points: Tensor,
    personal: Tensor,
    buffers: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the shared parameters and personal blocks that an algorithm makes of those of S clients.

    Modules are in the modes of the last round meanwhile. Running statistics stay as they are.

    Args:
        group: Clients of one architecture, which is active in the task.
        algorithm: What the clients do.
        data: Their training data; None if these are not at hand.
        client_ids: The S clients.
        points: Shared parameters, ``[S, d]``.
        personal: Personal blocks, ``[S, p]``; p may be 0.
        buffers: The buffers that the objective changes, ``[S, b]``.

    Raises:
        UsageError: If there are no training data.
        ObjectiveError: If the objective fails.
    """
    if data is None:
        raise UsageError(
            f"{type(algorithm).__name__} makes a client's own model of the global one by local steps on "
            f"the client's training data, and the data of client {client_ids[0]} are not at hand. Fit, validate or "
            "test with the FederatedDataModule first; the model without these steps is the global one."
        )
    found = []
    with torch.inference_mode(False), _as_in_rounds(group.table):
        for place, client in enumerate(client_ids):
            w, v, b = (each[place : place + 1].detach().clone() for each in (points, personal, buffers))
            found.append(_of_one(group, algorithm, data.of(client, w.device, group.objective.dtype), w, v, b))
    shared, own = zip(*found, strict=True)
    return torch.cat(shared), torch.cat(own)


def _of_one(
    group: ClientGroup, algorithm: AdaptsInUse, cohort: Cohort, w: Tensor, v: Tensor, b: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the shared parameters ``[1, d]`` and the personal block ``[1, p]`` of the only client of a cohort."""
    table = group.table
    if not group.has_joined:
        group.join(cohort.preview(1), table.states.num_clients)
    chunk = next(cohort.chunks(1))
    oracle = GradientOracle(
        chunk,
        Sequential().evaluator(group.objective, cohort.steps()),
        buffers=b,
        personal=v if v.shape[1] else None,
        seeds=[derive_seed(cohort.seed, client, 2) for client in chunk.ids],
        averaged=table.buffers.averaged,
    )
    with group.errors_named(chunk.ids), torch.no_grad():
        shared, own = algorithm.adapted(w, oracle)
    return shared, v if own is None else own


@contextmanager
def _as_in_rounds(table: ClientTable) -> Iterator[None]:
    """Put the modules of a task into the modes of the last round for a while."""
    modes: list[tuple[Any, bool]] = []
    for name, module in named_modules(table.task):
        modes.append((module, module.training))
        module.training = name not in table.evaluating
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
