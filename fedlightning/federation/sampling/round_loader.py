"""Turns the data of a federation into rounds, one batch of the train loader each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedlightning.algorithms.base import Phase
from fedlightning.federation.sampling.cohort import RoundBatch
from fedlightning.federation.sampling.loaded_samples import LoadedSamples, SampleRequest
from fedlightning.federation.sampling.round_plan import ProcessShare, RoundData, RoundPlan
from fedlightning.federation.sampling.sources import LoadedSource, Source

_MINIBATCHES = Phase(None, None, None)  # type: ignore[arg-type]  # only what the phase asks of the data is read


class RoundLoader:
    """Yields one :class:`RoundBatch` a round, as a pure function of (seed, round).

    An epoch is ``rounds_per_epoch`` rounds; the round to begin with is asked for when iteration starts, after Lightning
    has restored it, so no position has to be stored.

    Attributes:
        plan: Who takes part in every round, and with which samples.
    """

    def __init__(
        self,
        data: RoundData,
        phases: Sequence[Phase] | None = None,
        start: Callable[[], int] = lambda: 0,
        rank: int = 0,
        world_size: int = 1,
        architecture: Callable[[int], str] = lambda client: "",
        by_owner: bool = False,
    ) -> None:
        """Make rounds of the data.

        Args:
            data: A :class:`~fedlightning.data.FederatedDataModule`.
            phases: Phases of the algorithm; None for a single one that works on minibatches.
            start: Gives the round that comes first, from 0, whenever an iteration begins.
            rank: Number of this process, from 0.
            world_size: Number of processes that share a cohort.
            architecture: Function from the number of a client to the name of its architecture.
            by_owner: Whether a process gets the clients whose states lie in it; else processes get equal shares.

        Raises:
            ValueError: If a cohort may have fewer clients than there are processes.
        """
        share = ProcessShare(rank, world_size, by_owner)
        self.plan = RoundPlan(data, (_MINIBATCHES,) if phases is None else phases, share, architecture)
        self._data = data
        self._start = start
        self._in_memory = data.federation.source()

    def __len__(self) -> int:
        return self._data.rounds_per_epoch

    def __iter__(self) -> Iterator[RoundBatch]:
        start = self._start()
        rounds = range(start, start + len(self))
        source = self._loaded(rounds) if self._in_memory is None else self._in_memory
        for round_index in rounds:
            cohorts = (self.plan.cohort(round_index, phase, source) for phase in range(len(self.plan.phases)))
            yield RoundBatch(round_index, tuple(cohorts), self._data.federation.partition.sizes)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the trainer's round says where iteration begins."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore nothing."""

    def _loaded(self, rounds: range) -> Source:
        return LoadedSource(LoadedSamples(self._data.federation.train, self._requests(rounds), self._data.num_workers))

    def _requests(self, rounds: range) -> Iterator[SampleRequest]:
        """Ask for samples in the order in which rounds, phases and cohorts will take them."""
        for round_index in rounds:
            for phase in range(len(self.plan.phases)):
                for member in self.plan.members(round_index, phase):
                    yield self.plan.request(member, round_index, phase)
