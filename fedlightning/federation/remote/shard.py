"""The training data of a node's own clients, under the ids that the clients have in the federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from fedlightning.algorithms.base import Phase
from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.protocol import Request
from fedlightning.federation.remote.data_digest import DataDigest
from fedlightning.federation.sampling.cohort import ClientBatches, Cohort
from fedlightning.federation.sampling.loaded_samples import LoadedSamples
from fedlightning.federation.sampling.round_plan import (
    ClientPositions,
    ClientSamples,
    ProcessShare,
    RoundData,
    RoundPlan,
)
from fedlightning.federation.sampling.sources import LoadedSource, Source


class Shard:
    """Makes the cohorts of a node, which draws the samples of its own clients and knows nothing of other clients.

    Minibatches depend on the seed of the data, round, phase and the client's id in the federation, as in a simulation.

    Attributes:
        client_ids: Ids of the node's clients in the federation, ascending.
        samples: Their numbers of samples, ``[S]``.
    """

    def __init__(
        self,
        data: RoundData,
        phases: Sequence[Phase],
        places: Mapping[int, int],
        architecture: Callable[[int], str] = lambda client: "",
    ) -> None:
        """Take the data of a node.

        Args:
            data: A :class:`~fedlightning.data.FederatedDataModule` with the node's clients, and perhaps others.
            phases: Phases of the algorithm.
            places: Number of each of the node's clients in ``data``, by the client's id in the federation.
            architecture: Function from a client's id to the name of its architecture.

        Raises:
            ValueError: If there are no clients, or the data have no client of a number.
        """
        known = len(data.federation.partition)
        if not places:
            raise InvalidValueError("A node has no clients. Name at least one.")
        if wrong := [client for client, place in places.items() if client < 0 or not 0 <= place < known]:
            raise InvalidValueError(
                f"Client {wrong[0]} is number {places[wrong[0]]} of the node's data, with clients 0 to {known - 1}."
            )
        self.client_ids = sorted(places)
        own = _OwnSamples(data.federation, OwnPositions(data.federation.partition, dict(places)))
        self.samples = own.partition.sizes
        self._own, self._num_workers = own, data.num_workers
        self._plan = RoundPlan(data, phases, ProcessShare(), architecture, own)
        self._in_memory = own.source()

    def digests(self, digest: DataDigest) -> list[str]:
        """Return what the data of each client are recognised by, in the order of ``client_ids``.

        Samples in memory count with all their values; of others, whose content is not read, their positions and targets
        do.
        """
        found = []
        for client in self.client_ids:
            positions = self._own.partition[client]
            known = self._own.stored(positions)
            found.append(digest.of(known if self._in_memory is not None else [positions, *known]))
        return found

    def cohort(self, client_ids: Sequence[int], request: Request, device: torch.device, dtype: torch.dtype) -> Cohort:
        """Return clients of the node with the samples of a round and phase, on a device."""
        return self._placed(client_ids, *request.stamp, request.seed, device, dtype)

    def trial(self, client: int, device: torch.device, dtype: torch.dtype) -> Cohort:
        """Return a client of the node with samples of the first round, to try the objective or adapt a model on."""
        return self._placed([client], 0, 0, 0, device, dtype)

    def _placed(
        self,
        client_ids: Sequence[int],
        round_index: int,
        phase: int,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Cohort:
        members = self._plan.members_of(client_ids, round_index, phase)
        source = self._loaded(members, round_index, phase) if self._in_memory is None else self._in_memory
        cohort = Cohort(members, source, seed, answering=len(members), contacted=len(members))
        return cohort.place(device, dtype)

    def _loaded(self, members: Sequence[ClientBatches], round_index: int, phase: int) -> Source:
        requests = (self._plan.request(member, round_index, phase) for member in members)
        return LoadedSource(LoadedSamples(self._own.train, requests, self._num_workers))


@dataclass(frozen=True)
class OwnPositions:
    """Says where the samples of the node's clients lie, by the clients' ids in the federation.

    Attributes:
        partition: Where the samples of the clients of the node's data lie.
        places: Number of each of the node's clients in these data, by the client's id in the federation.
    """

    partition: ClientPositions
    places: Mapping[int, int]

    @property
    def sizes(self) -> Tensor:
        """The numbers of samples, in ascending order of the ids."""
        return self.partition.sizes[[self.places[client] for client in sorted(self.places)]]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, client: int) -> Tensor:
        return self.partition[self.places[client]]


@dataclass(frozen=True)
class _OwnSamples:
    """Holds the samples of the node's clients."""

    samples: ClientSamples
    partition: OwnPositions

    @property
    def train(self) -> Dataset[Any]:
        """The pooled samples of the node's data."""
        return self.samples.train

    def source(self) -> Source | None:
        """Return the source of samples that lie in memory; None if they have to be loaded."""
        return self.samples.source()

    def shape_of(self, positions: Tensor) -> int:
        """Return the number of the shape that samples share."""
        return self.samples.shape_of(positions)

    def stored(self, positions: Tensor) -> list[Tensor]:
        """Return what is known of samples without loading them."""
        return self.samples.stored(positions)
