"""The measurement of oracles on the first clients of a cohort."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

import torch

from fedlightning.core.memory import give_back_what_is_free
from fedlightning.core.tree import map_tensors
from fedlightning.federation.clients.rehearsal import share_in_place
from fedlightning.federation.protocol import Request
from fedlightning.federation.sampling.cohort import Chunk, Cohort, cuts
from fedlightning.oracle import Auto, BatchedError, Cost, Sequential, Vectorized
from fedlightning.oracle.auto import Trial
from fedlightning.oracle.checks.check import SelfCheck
from fedlightning.oracle.checks.comparison import STEPS, Sample
from fedlightning.oracle.effects.side_effects import undone
from fedlightning.oracle.errors import is_out_of_memory
from fedlightning.oracle.timing import Arguments

if TYPE_CHECKING:
    from fedlightning.federation.clients.client_group import ClientGroup


@dataclass(frozen=True)
class FirstClients:
    """Times oracles on the clients that a process meets first.

    Attributes:
        group: Group of the first client, its architecture active.
        cohort: This process's part of the first cohort.
        cost: Cost of one client's gradient.
        request: What the server asks of the clients.
    """

    group: ClientGroup
    cohort: Cohort
    cost: Cost
    request: Request

    def trial(
        self,
        auto: Auto,
        batched: Vectorized | None,
        side_by_side: Callable[[], Vectorized | None],
        report: Callable[[str], None],
        most: int,
    ) -> Trial:
        """Time the oracles, with as many clients at once as fit into memory.

        Args:
            auto: The open choice.
            batched: The fastest batched oracle that agrees with plain evaluation; None if there is none.
            side_by_side: Returns the oracle that replays one client's gradient for all; None if it is not to be taken.
            report: Receives a line if fewer clients fit than ``batched`` computes at once.
            most: Largest number of clients that may be computed at once.
        """
        wanted, larger = batched, [] if batched is None else self._larger(batched, most)
        while True:
            try:
                trial = self._timed(auto, wanted, side_by_side, larger)
                break
            except (RuntimeError, MemoryError) as error:
                if isinstance(error, BatchedError) and not is_out_of_memory(error):  # plain evaluation names the client
                    return Trial(Sequential(), f"took Sequential: {str(error).splitlines()[0]}")
                if wanted is None or not is_out_of_memory(error):
                    raise
            # outside the handler, where the error would hold what fills the memory
            wanted, larger = (wanted, []) if larger else (_smaller(wanted), larger)
        if batched is not None and wanted != batched:
            fewer = 1 if wanted is None else wanted.chunk_size
            report(f"oracle: took {in_chunks(fewer)}: {too_many(batched.chunk_size)}")
        return trial

    def _together(self, size: int, at_a_time: int = 1) -> int:
        """Return how many clients a round computes together in chunks of a size: it cuts them into equal parts."""
        return max(stop - start for start, stop in pairwise(cuts(self.cohort.alike(), size, at_a_time)))

    def _larger(self, batched: Vectorized, most: int) -> list[int]:
        """Return the sizes of chunks that are half as many, a quarter as many, and so on, up to ``most``."""
        assert batched.chunk_size is not None
        clients = self.cohort.alike()
        count, sizes = math.ceil(clients / batched.chunk_size), []
        while count > 1:
            count = math.ceil(count / 2)
            sizes.append(math.ceil(clients / count))
        return [size for size in sizes if size <= most]

    def _timed(
        self,
        auto: Auto,
        batched: Vectorized | None,
        side_by_side: Callable[[], Vectorized | None],
        larger: Sequence[int],
    ) -> Trial:
        group, request = self.group, self.request
        in_place = share_in_place(group.table, self.cohort.preview(1), request)

        def arguments(size: int, at_a_time: int = 1) -> Arguments:
            give_back_what_is_free()  # checks and trials before have left holes, of which none may be large enough
            num_clients = self._together(size, at_a_time)
            chunk = self.cohort.preview(num_clients)  # its last client is repeated if too few share one signature
            places = torch.arange(num_clients, device=request.point.device).clamp(max=len(chunk) - 1)
            data = map_tensors(lambda leaf: leaf[places], next(chunk.minibatches()).data)
            return Arguments(*group.table.start(request.point, request.buffers, num_clients), data, in_place)

        with group.errors_named(self.cohort.client_ids), undone(group.table.task):
            return auto.choose(
                group.objective,
                self.cohort.calls,
                arguments,
                batched,
                side_by_side,
                larger,
            )

    def side_by_side(self) -> Vectorized | None:
        """Return the oracle that replays one client's gradient for all on all threads; on a GPU, as a CUDA graph.

        None if that is wrong for this objective, if there is one client, or on other devices.
        """
        autocast = self.group.objective.autocast
        if len(self.cohort) == 1 or not (autocast.on_cpu or autocast.on_gpu):
            return None
        oracle = Vectorized(backward="each", threads=torch.get_num_threads() if autocast.on_cpu else 1)
        size = min(oracle.chunk(self.cost), len(self.cohort))
        check = SelfCheck(self.group.objective, sample_of(self.group, self.cohort.apart(0, size), self.request))
        return replace(oracle, chunk_size=size) if check(oracle) is None else None


def sample_of(group: ClientGroup, chunk: Chunk, request: Request) -> Sample:
    """Return the first steps of a chunk's first and last client, or of its only client."""
    ends = sorted({0, len(chunk) - 1})
    places = torch.tensor(ends, device=request.point.device)
    data: Sequence[Any] = [
        map_tensors(lambda leaf: leaf[places], batch.data) for batch in islice(chunk.minibatches(), STEPS)
    ]
    return Sample(
        *group.table.start(request.point, request.buffers, len(places)), data, [chunk.ids[place] for place in ends]
    )


def half(clients: int) -> int:
    """Return half of a number of clients, at least 1."""
    return (clients + 1) // 2


def in_chunks(clients: int | None) -> str:
    """Describe the size of chunks, for reports."""
    return f"chunks of {clients} client{'s' if clients != 1 else ''}"


def too_many(clients: int | None) -> str:
    """Report that a chunk has been too large."""
    return f"{clients} at once do not fit into memory"


def _smaller(oracle: Vectorized) -> Vectorized | None:
    """Return the oracle with half as many clients at once; None if it is down to one already."""
    assert oracle.chunk_size is not None
    return replace(oracle, chunk_size=half(oracle.chunk_size)) if oracle.chunk_size > 1 else None
