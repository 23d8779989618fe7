"""One round's cohorts, and the chunks of clients in which they are computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedlightning.core.arrivals import Arrivals
from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.sampling.minibatches import repeat_last
from fedlightning.federation.sampling.sources import PartSource, Source, WholeData
from fedlightning.oracle.minibatch import Minibatch

if TYPE_CHECKING:
    from fedlightning.federation.protocol import Invitation


@dataclass(frozen=True)
class ClientBatches:
    """Says which samples one client works on in one phase of a round.

    Attributes:
        id: Number of the client.
        index: ``[K, B]``, positions of the minibatches in the pooled data; in a phase that wants full data ``[1, n]``,
            all samples of the client.
        size: Number n of the client's samples.
        whole: ``[n]``, positions of all samples in a phase that wants them beside minibatches; else None.
        architecture: Architecture of the client; see :class:`~fedlightning.models.PerArchitecture`.
        shape: Number of the shape of the client's samples, where samples of several shapes are pooled.
    """

    id: int
    index: Tensor
    size: int
    whole: Tensor | None = None
    architecture: str = ""
    shape: int = 0

    @property
    def signature(self) -> tuple[int, str, int]:
        """Return what clients must agree in to be computed together: batch size, architecture, shape of samples."""
        return self.index.shape[1], self.architecture, self.shape


@dataclass(frozen=True)
class Cohort:
    """Holds the clients of one phase of one round, or one process's share of them.

    Attributes:
        members: The clients with their samples; clients with the same signature stand next to each other.
        source: Gives the samples.
        seed: Seed of this cohort's randomness.
        answering: Number of clients that will answer, over all processes; 0 once too few do.
        contacted: Number of clients contacted, over all processes. Clients that did not answer receive no data.
        dtype: Dtype of the counts of steps and samples.
        device: Device of indices and counts.
        expected: Mean number of clients contacted in such a phase, over all processes; None if unknown.
        seconds: Virtual seconds that the phase takes; None without a virtual clock.
        arrivals: From which models the clients of all processes started; None if from the newest one.
    """

    members: tuple[ClientBatches, ...]
    source: Source
    seed: int
    answering: int = 0
    contacted: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")
    expected: float | None = None
    seconds: float | None = None
    arrivals: Arrivals | None = None

    def __len__(self) -> int:
        return len(self.members)

    @property
    def client_ids(self) -> list[int]:
        """Return who takes part in this process, in the order of ``members``."""
        return [member.id for member in self.members]

    def place(self, device: torch.device, dtype: torch.dtype) -> Cohort:
        """Return the cohort with its samples on ``device``, real numbers in ``dtype``."""
        source = self.source.place(device, dtype)
        wide = torch.promote_types(dtype, torch.float32)  # counts must be exact, also beside 16-bit parameters
        return replace(self, source=source, dtype=wide, device=device)

    def steps(self) -> int:
        """Return the largest number of minibatches that a client has; 0 without clients."""
        return max((len(member.index) for member in self.members), default=0)

    def calls(self, together: int, steps: int | None = None) -> int:
        """Return how many gradients of so many clients at once a round takes.

        Args:
            together: Number of clients that are computed together.
            steps: Gradients of a client; by default, one for each minibatch.
        """
        return (self.steps() if steps is None else steps) * -(-len(self) // together)

    def preview(self, num_clients: int) -> Chunk:
        """Return up to ``num_clients`` of the first clients that share a signature; :meth:`chunks` gives them again."""
        _, stop = next(self._alike())
        return Chunk(self.members[: min(num_clients, stop)], self, keep=True)

    def apart(self, turn: int, among: int) -> Chunk:
        """Return two clients for a self-check, without using up their data: the first and the last that go together.

        Args:
            turn: 0 chooses the first client and the last with its signature; each later turn goes two clients further.
            among: Where samples arrive in order, only so many of the first clients are looked at.
        """
        within = min(max(among, 2), len(self)) if self.source.in_order else len(self)
        one = 2 * turn % within
        signatures = [member.signature for member in self.members[:within]]
        start, stop = signatures.index(signatures[one]), one + 1
        while stop < within and signatures[stop] == signatures[one]:
            stop += 1
        places = sorted({one, one - 1 if one > start else stop - 1})
        ahead = replace(self, source=self.source.ahead(places))
        return Chunk([self.members[place] for place in places], ahead, keep=True)

    def chunks(self, size: int, at_a_time: int = 1) -> Iterator[Chunk]:
        """Cut the cohort into chunks of clients that share a signature, about equally many in each.

        Args:
            size: Largest number of clients in a chunk.
            at_a_time: Number of which all of several chunks but the last have a multiple, unless ``size`` is smaller.
        """
        for start, stop in self._alike():
            for first, end in pairwise(cuts(stop - start, size, at_a_time)):
                yield Chunk(self.members[start + first : start + end], self)

    def alike(self) -> int:
        """Return the largest number of clients that share a signature; 0 without clients."""
        return max((stop - start for start, stop in self._alike()), default=0)

    def _alike(self) -> Iterator[tuple[int, int]]:
        """Yield where clients that share a signature begin and end."""
        start = 0
        while start < len(self.members):
            signature, stop = self.members[start].signature, start
            while stop < len(self.members) and self.members[stop].signature == signature:
                stop += 1
            yield start, stop
            start = stop


def cuts(num_clients: int, size: int, at_a_time: int = 1) -> list[int]:
    """Return where :meth:`Cohort.chunks` of clients of one signature begin, and where the last one ends."""
    if num_clients <= size:
        return [0, num_clients]
    at_a_time = min(at_a_time, size)
    groups = -(-num_clients // at_a_time)
    count = -(-groups // (size // at_a_time))
    return [min(groups * k // count * at_a_time, num_clients) for k in range(count + 1)]


class Chunk:
    """Gives the samples of C clients of a cohort that are computed together.

    Attributes:
        ids: Numbers of the clients.
        architecture: Architecture of all these clients.
        steps: ``[C]``, minibatches of each client.
        sizes: ``[C]``, samples of each client.
    """

    def __init__(self, members: Sequence[ClientBatches], cohort: Cohort, keep: bool = False) -> None:
        """Take clients of a cohort.

        Args:
            members: The clients, at least one, all with the same signature.
            cohort: The cohort, whose source stands at the first of these clients.
            keep: Whether the source must give the same clients once more.
        """
        self._members = members
        self._cohort = cohort
        self.ids = [member.id for member in members]
        self.architecture = members[0].architecture
        counts = self._counts = [len(member.index) for member in members]
        self.steps = torch.tensor(counts, dtype=cohort.dtype, device=cohort.device)
        self.sizes = torch.tensor([member.size for member in members], dtype=cohort.dtype, device=cohort.device)
        self._longest = max(counts)
        self._index = torch.stack([repeat_last(member.index, self._longest) for member in members]).to(cohort.device)
        whole = [member.whole.to(cohort.device) for member in members if member.whole is not None]
        self._whole: WholeData | None = None
        if whole:
            self._at_step, self._whole = cohort.source.minibatches_and_all(self._index, whole, keep)
        else:
            self._at_step = cohort.source.minibatches(self._index, keep)

    def __len__(self) -> int:
        return len(self.ids)

    def parts(self, size: int) -> list[Chunk]:
        """Cut the chunk into chunks of at most ``size`` clients, with the samples that were drawn for this one."""
        return [self._part(slice(start, start + size)) for start in range(0, len(self), size)]

    def _part(self, places: slice) -> Chunk:
        source = self._cohort.source
        if source.in_order:  # what has arrived does not arrive again
            source = PartSource(self._at_step, self._whole, places)
        return Chunk(self._members[places], replace(self._cohort, source=source))

    def minibatches(self) -> Iterator[Minibatch]:
        """Give as many minibatches as the longest client has; clients with fewer are inactive in the last ones."""
        active, ends = None, {*self._counts}
        for k in range(self._longest):
            if k in ends:
                active = self.steps > k
            yield Minibatch(self._at_step(k), active)

    def full(self) -> Iterator[tuple[Tensor, Any]]:
        """Give all data of the clients, in groups of clients that have equally many samples.

        Yields:
            Places ``[G]`` of a group's clients in the chunk, and their data, leaves ``[G, n, ...]``.

        Raises:
            ValueError: If the phase works on minibatches of part of the data only.
        """
        if self._whole is not None:
            sizes = [int(size) for size in self.sizes.tolist()]
            for size in dict.fromkeys(sizes):
                places = [place for place, own in enumerate(sizes) if own == size]
                yield torch.tensor(places, device=self.steps.device), self._whole(places)
            return
        index = self._index[:, 0]
        if index.shape[1] != self.sizes[0] or (self.sizes != self.sizes[0]).any():
            raise InvalidValueError(
                "oracle.full needs all data of a client, but this phase works on minibatches. "
                "Declare the phase with data='full' or 'both', or set batch_size to null."
            )
        yield torch.arange(len(self), device=self.steps.device), self._at_step(0)()


class RoundBatch:
    """Holds one communication round, as the train loader yields it.

    Not a dataclass: Lightning would copy its tensors.

    Attributes:
        index: Number of the round, from 0.
        cohorts: One cohort for each phase of the algorithm, this process's share of it.
        samples: ``[N]``, number of samples of every client of the federation.
        invitations: Whom to ask in each phase where clients live on other machines, so that there are no cohorts here.
    """

    def __init__(
        self,
        index: int,
        cohorts: tuple[Cohort, ...],
        samples: Tensor,
        invitations: tuple[Invitation, ...] = (),
    ) -> None:
        """Join the phases' cohorts or invitations."""
        self.index = index
        self.cohorts = cohorts
        self.samples = samples
        self.invitations = invitations

    @property
    def phases(self) -> int:
        """Return the number of phases of the round."""
        return len(self.invitations or self.cohorts)

    def numbered(self, index: int) -> RoundBatch:
        """Return a later round with the same clients and samples, whose number is ``index``."""
        return RoundBatch(index, self.cohorts, self.samples, self.invitations)

    def place(self, device: torch.device, dtype: torch.dtype) -> RoundBatch:
        """Return the round with its samples on ``device``, real numbers in ``dtype``."""
        cohorts = tuple(cohort.place(device, dtype) for cohort in self.cohorts)
        return RoundBatch(self.index, cohorts, self.samples, self.invitations)
