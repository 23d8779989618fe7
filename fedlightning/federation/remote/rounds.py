"""Rounds of a federation whose clients live on other machines: invitations, without data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from fedlightning.core.seeding import derive_seed
from fedlightning.federation.protocol import Invitation
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.participation import Participation


class RemoteRounds:
    """Yields one :class:`RoundBatch` a round, whose invitations are a function of (seed, round).

    Seeds are those of a simulation with the same seed.
    """

    def __init__(
        self,
        num_clients: int,
        num_phases: int,
        participation: Participation,
        rounds_per_epoch: int,
        seed: int,
        start: Callable[[], int] = lambda: 0,
    ) -> None:
        """Plan rounds.

        Args:
            num_clients: Number N of clients of the federation.
            num_phases: Number of phases of a round.
            participation: Who is invited, and when a round goes on.
            rounds_per_epoch: Rounds of an epoch.
            seed: Seed of the run.
            start: Gives the round that comes first, from 0, whenever an iteration begins.
        """
        self._num_clients = num_clients
        self._num_phases = num_phases
        self._participation = participation
        self._rounds_per_epoch = rounds_per_epoch
        self._seed = seed
        self._start = start

    def __len__(self) -> int:
        return self._rounds_per_epoch

    def __iter__(self) -> Iterator[RoundBatch]:
        start, samples = self._start(), torch.zeros(self._num_clients)
        for index in range(start, start + len(self)):
            invitations = tuple(self._invitation(index, phase) for phase in range(self._num_phases))
            yield RoundBatch(index, (), samples, invitations)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the trainer's round says where iteration begins."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore nothing."""

    def _invitation(self, index: int, phase: int) -> Invitation:
        recruitment = self._participation.recruit(self._num_clients, self._seed, index, phase)
        most = max(len(cohort) for cohort in recruitment.cohorts)
        seed = derive_seed(self._seed, index, phase, 2)
        return Invitation([], most, 0, seed, recruitment, self._participation.expected(self._num_clients))
