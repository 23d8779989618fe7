"""The batches of federated training: one round's cohorts, and the minibatches that their clients work on."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedlightning.core.seeding import derive_seed
from fedlightning.core.tree import map_tensors
from fedlightning.oracle.gradient import Minibatch

Transform = Callable[[Any], Any]
"""Maps a gathered batch (leaves ``[..., B, ...]``) to the batch the objective sees, on the device."""


class Source(ABC):
    """Where samples come from, by index into one pooled data set.

    Attributes:
        in_order: Whether samples arrive in the order of the clients, so that to look at a late one takes all before it.
    """

    in_order: ClassVar[bool] = False

    @abstractmethod
    def place(self, device: torch.device, dtype: torch.dtype) -> Source:
        """A source whose samples arrive on ``device``, real numbers in ``dtype``."""

    @abstractmethod
    def minibatches(self, index: Tensor, keep: bool = False) -> Callable[[int], Any]:
        """Samples of C clients.

        Args:
            index: ``[C, K, B]``, one minibatch of B samples in each of K steps.
            keep: ClientBatches the same clients once more afterwards.

        Returns:
            A function of the step k that gives leaves ``[C, B, ...]``.
        """

    @abstractmethod
    def minibatches_and_all(
        self, index: Tensor, whole: Sequence[Tensor], keep: bool = False
    ) -> tuple[Callable[[int], Any], Callable[[Sequence[int]], Any]]:
        """Minibatches and all samples of C clients.

        Args:
            index: As for :meth:`minibatches`.
            whole: ``[n_i]``, all positions of each client.
            keep: As for :meth:`minibatches`.

        Returns:
            The function of the step, and one of places in ``whole`` with equal n that gives leaves
            ``[places, n, ...]``.
        """

    def ahead(self, places: Sequence[int]) -> Source:
        """A source whose next clients are those at ``places``, counted from the next one; all are still to come."""
        return self


class TensorSource(Source):
    """Samples held as tensors ``[n, ...]`` in any nesting of dicts, lists and tuples; gathered by index."""

    def __init__(self, tensors: Any, transform: Transform | None = None) -> None:
        """Hold tensors, with an optional transform of gathered batches (scaling of bytes, say)."""
        self.tensors = tensors
        self.transform = transform
        self._placed: dict[tuple[torch.device, torch.dtype], TensorSource] = {}

    def place(self, device: torch.device, dtype: torch.dtype) -> TensorSource:
        """A copy on the device, made once."""
        key = (device, dtype)
        if key not in self._placed:
            moved = map_tensors(lambda t: t.to(device, dtype if t.is_floating_point() else t.dtype), self.tensors)
            self._placed = {key: TensorSource(moved, self.transform)}  # one device at a time
        return self._placed[key]

    def minibatches(self, index: Tensor, keep: bool = False) -> Callable[[int], Any]:
        """Gather step by step: a step's samples stay in the caches until they are used."""
        return lambda k: self.gather(index[:, k])

    def minibatches_and_all(
        self, index: Tensor, whole: Sequence[Tensor], keep: bool = False
    ) -> tuple[Callable[[int], Any], Callable[[Sequence[int]], Any]]:
        """Gather both when they are asked for."""
        return self.minibatches(index), lambda places: self.gather(torch.stack([whole[place] for place in places]))

    def gather(self, index: Tensor) -> Any:
        """Samples at ``index [...]``, leaves ``[..., *sample]``."""
        flat = index.reshape(-1)
        batch = map_tensors(lambda t: t.index_select(0, flat).view(*index.shape, *t.shape[1:]), self.tensors)
        return batch if self.transform is None else self.transform(batch)


class MixedSource(Source):
    """Samples of several shapes, each in a source of its own; positions count through them all."""

    def __init__(self, sources: Sequence[TensorSource], offsets: Tensor) -> None:
        """Source k holds the positions from ``offsets[k]`` on."""
        self._sources = tuple(sources)
        self._offsets = offsets

    def place(self, device: torch.device, dtype: torch.dtype) -> MixedSource:
        """Every source in its place."""
        return MixedSource([source.place(device, dtype) for source in self._sources], self._offsets)

    def minibatches(self, index: Tensor, keep: bool = False) -> Callable[[int], Any]:
        """Samples of clients that have one shape."""
        source, start = self._of(index)
        return source.minibatches(index - start, keep)

    def minibatches_and_all(
        self, index: Tensor, whole: Sequence[Tensor], keep: bool = False
    ) -> tuple[Callable[[int], Any], Callable[[Sequence[int]], Any]]:
        """Likewise."""
        source, start = self._of(index)
        return source.minibatches_and_all(index - start, [positions - start for positions in whole], keep)

    def _of(self, index: Tensor) -> tuple[TensorSource, int]:
        number = int(torch.searchsorted(self._offsets, index.flatten()[:1].cpu(), right=True)) - 1
        return self._sources[number], int(self._offsets[number])


class LoadedSource(Source):
    """Samples that a ``DataLoader`` brings, one client's round at a time, in the order they are asked for."""

    in_order = True

    def __init__(
        self, items: Iterator[Any], device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        """Take ``items``: for every client of every cohort, its samples of the round with leaves ``[K * B, ...]``."""
        self._items = items
        self._kept: deque[Any] = deque()
        self._device = device
        self._dtype = dtype

    def place(self, device: torch.device, dtype: torch.dtype) -> LoadedSource:
        """The same items, moved as they arrive."""
        self._device, self._dtype = device, dtype
        return self

    def minibatches(self, index: Tensor, keep: bool = False) -> Callable[[int], Any]:
        """Draw the next C items; the loader was given the index beforehand, so it only tells the shape."""
        clients, steps, batch = index.shape
        drawn = self._draw(clients, keep)

        def stack(*leaves: Tensor) -> Tensor:
            return self._place(torch.stack([_padded(leaf.unflatten(0, (-1, batch)), steps) for leaf in leaves]))

        data = map_tensors(stack, *drawn)
        return lambda k: map_tensors(lambda t: t[:, k], data)

    def minibatches_and_all(
        self, index: Tensor, whole: Sequence[Tensor], keep: bool = False
    ) -> tuple[Callable[[int], Any], Callable[[Sequence[int]], Any]]:
        """Draw all samples of the next C clients; minibatches are picked from them."""
        drawn = self._draw(len(index), keep)
        local = []
        for positions, minibatches in zip(whole, index.cpu(), strict=True):
            ascending, order = positions.cpu().sort()
            local.append(order[torch.searchsorted(ascending, minibatches)])

        def step(k: int) -> Any:
            def pick(*leaves: Tensor) -> Tensor:
                return self._place(torch.stack([leaf[own[k]] for leaf, own in zip(leaves, local, strict=True)]))

            return map_tensors(pick, *drawn)

        def everything(places: Sequence[int]) -> Any:
            return map_tensors(lambda *leaves: self._place(torch.stack(leaves)), *(drawn[place] for place in places))

        return step, everything

    def ahead(self, places: Sequence[int]) -> LoadedSource:
        """Draw all clients up to the last of ``places``; they are kept."""
        drawn = self._draw(max(places) + 1, keep=True)
        return LoadedSource(iter([drawn[place] for place in places]), self._device, self._dtype)

    def _draw(self, num_clients: int, keep: bool) -> list[Any]:
        drawn = [self._kept.popleft() if self._kept else next(self._items) for _ in range(num_clients)]
        if keep:
            self._kept.extendleft(reversed(drawn))
        return drawn

    def _place(self, tensor: Tensor) -> Tensor:
        dtype = self._dtype if tensor.is_floating_point() else None
        return tensor.to(self._device, dtype, non_blocking=True)


class PartSource(Source):
    """Samples of some clients among others with whom they were drawn together."""

    in_order = True

    def __init__(
        self, minibatches: Callable[[int], Any], everything: Callable[[Sequence[int]], Any] | None, places: slice
    ) -> None:
        """Take what a source gave, and the places of the clients among all."""
        self._step = minibatches
        self._everything = everything
        self._places = places

    def place(self, device: torch.device, dtype: torch.dtype) -> PartSource:
        """The samples themselves: they were placed before."""
        return self

    def minibatches(self, index: Tensor, keep: bool = False) -> Callable[[int], Any]:
        """These clients' part of every minibatch."""
        return lambda k: map_tensors(lambda leaf: leaf[self._places], self._step(k))

    def minibatches_and_all(
        self, index: Tensor, whole: Sequence[Tensor], keep: bool = False
    ) -> tuple[Callable[[int], Any], Callable[[Sequence[int]], Any]]:
        """Likewise, and all their samples."""
        everything = self._everything
        assert everything is not None
        return self.minibatches(index), lambda places: everything([self._places.start + place for place in places])


@dataclass(frozen=True)
class ClientBatches:
    """One client's part in one phase of a round.

    Attributes:
        id: Client.
        index: Its minibatches, ``[K, B]`` positions in the pooled data; all its samples as ``[1, n]`` in a phase that
            wants full data.
        size: Number n of its samples.
        whole: All its samples, ``[n]`` positions, in a phase that wants them beside minibatches; else None.
        architecture: Its architecture; see :class:`~fedlightning.models.PerArchitecture`.
        shape: Which of several shapes its samples have.
    """

    id: int
    index: Tensor
    size: int
    whole: Tensor | None = None
    architecture: str = ""
    shape: int = 0

    @property
    def kind(self) -> tuple[int, str, int]:
        """Clients of one kind can be computed together."""
        return self.index.shape[1], self.architecture, self.shape


@dataclass(frozen=True)
class Cohort:
    """The clients of one phase of one round, or one process's part of them.

    Attributes:
        members: The clients with their samples; clients of one kind stand together.
        source: Gives the samples.
        seed: Seed of this cohort's randomness.
        answering: Clients that will answer, over all processes; none once too few do.
        contacted: Number of clients contacted, over all processes. Clients that did not answer receive no data.
        dtype: Dtype of the numbers of steps.
        device: Where indices lie.
    """

    members: tuple[ClientBatches, ...]
    source: Source
    seed: int
    answering: int = 0
    contacted: int = 0
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")

    def __len__(self) -> int:
        return len(self.members)

    def place(self, device: torch.device, dtype: torch.dtype) -> Cohort:
        """The cohort with its samples on ``device``."""
        source = self.source.place(device, dtype)
        wide = torch.promote_types(dtype, torch.float32)  # counts must be exact, also beside 16-bit parameters
        return replace(self, source=source, dtype=wide, device=device)

    def steps(self) -> int:
        """Minibatches of the client that has most; 0 without clients."""
        return max((len(member.index) for member in self.members), default=0)

    def preview(self, num_clients: int) -> Chunk:
        """Up to so many of the first clients, which :meth:`chunks` will give again."""
        return next(self._chunks(num_clients, keep=True))

    def apart(self, turn: int, among: int) -> Chunk:
        """Two clients of one kind, or the only one, which :meth:`chunks` will give again.

        Args:
            turn: At turn 0 the first client and the last of its kind, at every later turn the next two.
            among: So many of the first clients are enough to choose from where samples arrive in order.
        """
        within = min(max(among, 2), len(self)) if self.source.in_order else len(self)
        one = 2 * turn % within
        kinds = [member.kind for member in self.members[:within]]
        start, stop = kinds.index(kinds[one]), one + 1
        while stop < within and kinds[stop] == kinds[one]:
            stop += 1
        places = sorted({one, one - 1 if one > start else stop - 1})
        ahead = replace(self, source=self.source.ahead(places))
        return Chunk([self.members[place] for place in places], ahead, keep=True)

    def chunks(self, size: int) -> Iterator[Chunk]:
        """The cohort in pieces of at most ``size`` clients of one kind."""
        return self._chunks(size, keep=False)

    def _chunks(self, size: int, keep: bool) -> Iterator[Chunk]:
        start = 0
        while start < len(self.members):
            kind = self.members[start].kind
            stop = start
            while stop < len(self.members) and stop - start < size and self.members[stop].kind == kind:
                stop += 1
            yield Chunk(self.members[start:stop], self, keep)
            start = stop


class Chunk:
    """Some clients of a cohort that are computed together.

    Attributes:
        ids: Clients.
        architecture: The architecture of these clients.
        steps: Minibatches of each, ``[C]``.
        sizes: Samples of each, ``[C]``.
    """

    def __init__(self, members: Sequence[ClientBatches], cohort: Cohort, keep: bool = False) -> None:
        """Take ``members`` of ``cohort``; with ``keep``, leave them to be taken again."""
        self._members = members
        self._cohort = cohort
        self.ids = [member.id for member in members]
        self.architecture = members[0].architecture
        counts = [len(member.index) for member in members]
        self.steps = torch.tensor(counts, dtype=cohort.dtype, device=cohort.device)
        self.sizes = torch.tensor([member.size for member in members], dtype=cohort.dtype, device=cohort.device)
        self._longest = max(counts)
        self._ragged = min(counts) < self._longest
        self._index = torch.stack([_padded(member.index, self._longest) for member in members]).to(cohort.device)
        whole = [member.whole.to(cohort.device) for member in members if member.whole is not None]
        self._whole: Callable[[Sequence[int]], Any] | None = None
        if whole:
            self._at_step, self._whole = cohort.source.minibatches_and_all(self._index, whole, keep)
        else:
            self._at_step = cohort.source.minibatches(self._index, keep)

    def __len__(self) -> int:
        return len(self.ids)

    def parts(self, size: int) -> list[Chunk]:
        """The chunk in pieces of at most ``size`` clients, with the samples that were drawn for it."""
        return [self._part(slice(start, start + size)) for start in range(0, len(self), size)]

    def _part(self, places: slice) -> Chunk:
        source = self._cohort.source
        if source.in_order:  # what has arrived does not arrive again
            source = PartSource(self._at_step, self._whole, places)
        return Chunk(self._members[places], replace(self._cohort, source=source))

    def minibatches(self) -> Iterator[Minibatch]:
        """K minibatches, the clients with fewer marked at the end."""
        for k in range(self._longest):
            yield Minibatch(self._at_step(k), self.steps > k if self._ragged else None)

    def full(self) -> Iterator[tuple[Tensor, Any]]:
        """All data of the clients, in groups of clients that have equally many samples."""
        if self._whole is not None:
            sizes = [int(size) for size in self.sizes.tolist()]
            for size in dict.fromkeys(sizes):
                places = [place for place, own in enumerate(sizes) if own == size]
                yield torch.tensor(places, device=self.steps.device), self._whole(places)
            return
        index = self._index[:, 0]
        if index.shape[1] != self.sizes[0] or (self.sizes != self.sizes[0]).any():
            raise ValueError(
                "oracle.full needs all data of a client, but this phase works on minibatches. "
                "Declare the phase with data='full' or 'both', or set batch_size to null."
            )
        yield torch.arange(len(self), device=self.steps.device), self._at_step(0)


class RoundBatch:
    """What the train loader yields: one communication round.

    Not a dataclass: Lightning would copy its tensors.

    Attributes:
        index: Round, from 0.
        cohorts: One a phase of the algorithm, this process's part of them.
        samples: Every client's number of samples, of the whole federation, ``[N]``.
    """

    def __init__(self, index: int, cohorts: tuple[Cohort, ...], samples: Tensor) -> None:
        """Join the phases' cohorts."""
        self.index = index
        self.cohorts = cohorts
        self.samples = samples

    def place(self, device: torch.device, dtype: torch.dtype) -> RoundBatch:
        """The round with its samples on ``device``, real numbers in ``dtype``."""
        return RoundBatch(self.index, tuple(cohort.place(device, dtype) for cohort in self.cohorts), self.samples)


def draw_minibatches(indices: Tensor, batch_size: int | None, steps: int, seed: int) -> Tensor:
    """One client's minibatches of a round: epochs of its data, each in a new order without replacement.

    A minibatch that the end of an epoch would leave short is filled from the beginning of the next epoch, so all have
    ``batch_size`` samples; a client with fewer samples than that meets some of them twice in a minibatch.

    Args:
        indices: ``[n]``, positions of the client's samples.
        batch_size: Samples B of a minibatch; None for all n, every time.
        steps: Minibatches K.
        seed: Seed of the order.

    Returns:
        ``[K, B]`` positions.
    """
    n = len(indices)
    if batch_size is None:
        return indices.expand(steps, n)
    generator = torch.Generator().manual_seed(seed)
    needed = steps * batch_size
    orders = [torch.randperm(n, generator=generator) for _ in range(math.ceil(needed / n))]
    return indices[torch.cat(orders)[:needed]].view(steps, batch_size)


def held_by(process: int, processes: int, num_clients: int) -> range:
    """The clients whose states lie in a process: client i is with process i modulo their number."""
    return range(process, num_clients, processes)


def client_seed(seed: int, round_index: int, phase: int, client: int) -> int:
    """Seed of one client's minibatches: independent of who else is in the cohort."""
    return derive_seed(seed, round_index, phase, 1, client)


def _padded(minibatches: Tensor, steps: int) -> Tensor:
    """``[K, ...]`` with the last one repeated to K = ``steps``; the repeats are marked inactive."""
    missing = steps - len(minibatches)
    if missing == 0:
        return minibatches
    return torch.cat([minibatches, minibatches[-1:].expand(missing, *minibatches.shape[1:])])
