"""Who takes part in a round, and which samples each of these clients works on: pure functions of (seed, round)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from torch import Tensor
from torch.utils.data import Dataset

from fedlightning.algorithms.base import Phase
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.seeding import derive_seed
from fedlightning.federation.processes import held_by
from fedlightning.federation.sampling.cohort import ClientBatches, Cohort
from fedlightning.federation.sampling.loaded_samples import SampleRequest
from fedlightning.federation.sampling.minibatches import client_seed, draw_minibatches
from fedlightning.federation.sampling.sources import Source
from fedlightning.participation import Participation, Selection


class ClientPositions(Protocol):
    """Says which samples each client holds; :class:`~fedlightning.data.Partition` is one."""

    @property
    def sizes(self) -> Tensor:
        """The clients' numbers of samples, ``[N]``."""

    def __len__(self) -> int: ...

    def __getitem__(self, client: int) -> Tensor:
        """Return the positions of a client's samples in the pooled data, ``[n_i]``."""


class ClientSamples(Protocol):
    """Holds the training samples of all clients; :class:`~fedlightning.data.Federation` does."""

    @property
    def train(self) -> Dataset[Any]:
        """All clients' samples, pooled."""

    @property
    def partition(self) -> ClientPositions:
        """Which of them each client holds."""

    def source(self) -> Source | None:
        """Return the source of samples that lie in memory; None if they have to be loaded."""

    def shape_of(self, positions: Tensor) -> int:
        """Return the number of the shape that samples share; 0 where all samples have one shape."""

    def stored(self, positions: Tensor) -> list[Tensor]:
        """Return what is known of samples without loading them, leaves ``[n, ...]``; empty if nothing is."""


class RoundData(Protocol):
    """Says what rounds are made of; :class:`~fedlightning.data.FederatedDataModule` documents the attributes."""

    batch_size: int | None
    local_steps: int | None
    local_epochs: float
    rounds_per_epoch: int
    num_workers: int
    participation: Participation
    seed: int

    @property
    def federation(self) -> ClientSamples:
        """Return the samples and who holds which of them."""


@dataclass(frozen=True)
class ProcessShare:
    """Gives each of several processes its share of a cohort.

    Attributes:
        rank: Number of this process, from 0.
        count: Number of processes.
        by_owner: Whether a client belongs to the process in which its state lies; else processes get equal shares.
    """

    rank: int = 0
    count: int = 1
    by_owner: bool = False

    def of(self, ids: list[int], num_clients: int) -> list[int]:
        """Return the clients of a cohort that belong to this process, of a federation of ``num_clients``."""
        if self.by_owner:
            mine = held_by(self.rank, self.count, num_clients)
            return [client for client in ids if client in mine]
        start, stop = (round(place * len(ids) / self.count) for place in (self.rank, self.rank + 1))
        return ids[start:stop]

    def require_enough(self, num_clients: int, participation: Participation) -> None:
        """Make sure that a cohort has a client for every process.

        Raises:
            ValueError: If it has too few.
        """
        if num_clients < self.count:
            raise InvalidValueError(
                f"{participation}: a round may have {num_clients} clients, too few for {self.count} processes. Let "
                "more take part (FirstResponders: raise at_least), or use fewer devices."
            )


class RoundPlan:
    """Plans the cohorts of every round.

    Attributes:
        phases: The phases of a round, each with a cohort of its own.
    """

    def __init__(
        self,
        data: RoundData,
        phases: Sequence[Phase],
        share: ProcessShare,
        architecture: Callable[[int], str],
        samples: ClientSamples | None = None,
    ) -> None:
        """Plan rounds of a federation.

        Args:
            data: The data and how rounds are made of them.
            phases: Phases of the algorithm.
            share: This process's share of a cohort.
            architecture: Function from the number of a client to the name of its architecture.
            samples: The samples of the clients, in place of those of ``data``.

        Raises:
            ValueError: If a cohort may have fewer clients than there are processes, or a client's whole data shall be
                a minibatch of a part of an epoch.
        """
        require_minibatches(data)
        self.phases = phases
        self._data = data
        self._samples = data.federation if samples is None else samples
        self._share = share
        self._architecture = architecture
        if share.count > 1:
            share.require_enough(data.participation.fewest(self._num_clients), data.participation)

    def cohort(self, round_index: int, phase: int, source: Source) -> Cohort:
        """Return this process's share of the cohort of a phase, whose samples come from ``source``."""
        selection = self._selection(round_index, phase)
        return Cohort(
            self.members(round_index, phase),
            source,
            seed=derive_seed(self._data.seed, round_index, phase, 2),
            answering=len(self._answering(round_index, phase)),
            contacted=selection.num_contacted,
            expected=self._expected,
            seconds=selection.seconds,
            arrivals=selection.arrivals,
        )

    def members(self, round_index: int, phase: int) -> tuple[ClientBatches, ...]:
        """Return this process's clients in a phase, with their samples; none once too few have answered.

        See :meth:`members_of` for their order.
        """
        ids = self._answering(round_index, phase)
        if ids:
            self._share.require_enough(len(ids), self._data.participation)
        return self.members_of(self._share.of(ids, self._num_clients), round_index, phase)

    def members_of(self, client_ids: Sequence[int], round_index: int, phase: int) -> tuple[ClientBatches, ...]:
        """Return the given clients with their samples in a phase.

        Clients that go together stand next to each other, those with the most minibatches first: so chunks have
        clients that go on about equally long.
        """
        members = [self._batches(client, round_index, phase) for client in client_ids]

        def place(member: ClientBatches) -> tuple[Any, ...]:
            return *member.signature, -len(member.index), 0 if member.whole is None else member.size

        return tuple(sorted(members, key=place))

    def request(self, member: ClientBatches, round_index: int, phase: int) -> SampleRequest:
        """Ask for the samples that a client works on in a phase."""
        positions = member.index if member.whole is None else member.whole
        seed = derive_seed(client_seed(self._data.seed, round_index, phase, member.id), 1)
        return SampleRequest(round_index, member.id, positions.flatten().tolist(), seed)

    @cached_property
    def _expected(self) -> float | None:
        return self._data.participation.expected(self._num_clients)

    @property
    def _num_clients(self) -> int:
        return len(self._samples.partition)

    def _answering(self, round_index: int, phase: int) -> list[int]:
        """Return the clients that answer in a phase; none once too few did in an earlier one."""
        selections = [self._selection(round_index, each).ids for each in range(phase + 1)]
        return selections[phase] if all(selections[:phase]) else []

    def _selection(self, round_index: int, phase: int) -> Selection:
        return self._data.participation.select(self._num_clients, self._data.seed, round_index, phase)

    def _batches(self, client: int, round_index: int, phase: int) -> ClientBatches:
        """Draw what a client works on in a phase."""
        data, asked = self._data, self.phases[phase]
        positions = self._samples.partition[client]
        if asked.data == "full":
            index = positions[None]
        else:
            draws = asked.draws * self._steps(asked, len(positions))
            index = draw_minibatches(
                positions, data.batch_size, draws, client_seed(data.seed, round_index, phase, client)
            )
        return ClientBatches(
            client,
            index,
            size=len(positions),
            whole=positions if asked.data == "both" else None,
            architecture=self._architecture(client),
            shape=self._samples.shape_of(positions),
        )

    def _steps(self, phase: Phase, samples: int) -> int:
        """Return a client's local steps K: the phase's own number, the data's, or as many as local epochs take."""
        data = self._data
        if phase.steps is not None:
            return phase.steps
        if data.local_steps is not None:
            return data.local_steps
        if data.batch_size is None:
            return int(data.local_epochs)
        taken = round(data.local_epochs * samples / data.batch_size, 9)  # 1.1 * 20 is a little more than 22
        return max(1, math.ceil(taken))


def require_minibatches(data: RoundData) -> None:
    """Make sure that a part of an epoch is a number of minibatches.

    Raises:
        ValueError: If a client's whole data are one minibatch.
    """
    if data.batch_size is None and data.local_steps is None and data.local_epochs != int(data.local_epochs):
        raise InvalidValueError(
            f"local_epochs={data.local_epochs}, batch_size=null: a client's whole data are one minibatch, of which "
            "there is no part. Give a batch_size, or a whole number of epochs."
        )
