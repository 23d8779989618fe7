"""Where the samples of a cohort come from: tensors in memory, or a ``DataLoader``."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedlightning.core.tree import flatten, map_tensors, unflatten
from fedlightning.federation.sampling.minibatches import repeat_last
from fedlightning.oracle.minibatch import Gather, Rows

Transform = Callable[[Any], Any]
"""Maps a gathered batch (leaves ``[..., B, ...]``) to the batch the objective sees, on the device."""

AtStep = Callable[[int], Gather]
"""Maps a step k to a function that gathers the minibatches of C clients, or of some, at this step."""

WholeData = Callable[[Sequence[int]], Any]
"""Maps places of clients that have n samples each to all of these samples, leaves ``[places, n, ...]``."""


class Source(ABC):
    """Gives the samples of clients by their positions in one pooled data set.

    Attributes:
        in_order: True if samples arrive client by client, so that looking at a late client takes in all before it.
    """

    in_order: ClassVar[bool] = False

    @abstractmethod
    def place(self, device: torch.device, dtype: torch.dtype) -> Source:
        """Return a source whose samples arrive on ``device``, real numbers in ``dtype``."""

    @abstractmethod
    def minibatches(self, index: Tensor, keep: bool = False) -> AtStep:
        """Give the minibatches of the next C clients.

        Args:
            index: ``[C, K, B]``, positions of a minibatch of B samples in each of K steps.
            keep: Whether the same clients will be asked for once more, as when an oracle is tried on them first.
        """

    @abstractmethod
    def minibatches_and_all(
        self, index: Tensor, whole: Sequence[Tensor], keep: bool = False
    ) -> tuple[AtStep, WholeData]:
        """Give the minibatches and all samples of the next C clients.

        Args:
            index: As for :meth:`minibatches`.
            whole: ``[n_i]``, all positions of each client; the places that the second result takes count in this list.
            keep: As for :meth:`minibatches`.
        """

    def ahead(self, places: Sequence[int]) -> Source:
        """Return a source whose next clients are those at ``places``; this source still has all clients to give.

        Args:
            places: Ascending, counted from the next client.
        """
        return self


_EXACT_IN_FLOAT32 = 2.0**24
"""All whole numbers up to here are numbers of float32."""

_ALL_WHOLE = 2.0**53
"""From here on float64 has whole numbers alone."""

SMALL_BYTES = 2**15
"""Minibatches of so many bytes are gathered at once: operations take longer than the numbers."""

_FEW_STEPS = 4
"""Of fewer steps it does not pay."""


class TensorSource(Source):
    """Gathers samples by index from tensors ``[n, ...]`` in any nesting of dicts, lists and tuples."""

    def __init__(self, tensors: Any, transform: Transform | None = None) -> None:
        """Hold tensors, with an optional transform of gathered batches (scaling of bytes, say)."""
        self.tensors = tensors
        self.transform = transform
        self._leaves, self._structure = flatten(tensors)
        self._bytes = sum(leaf[:1].nbytes for leaf in self._leaves)
        self._placed: dict[tuple[torch.device, torch.dtype], TensorSource] = {}

    def place(self, device: torch.device, dtype: torch.dtype) -> TensorSource:
        """Return a copy on the device, made on the first call."""
        key = (device, dtype)
        if key not in self._placed:
            _has_warned_of_lost_numbers(self._leaves, dtype)
            moved = map_tensors(lambda t: _moved(t, device, dtype), self.tensors)
            self._placed = {key: TensorSource(moved, self.transform)}  # one device at a time
        return self._placed[key]

    def minibatches(self, index: Tensor, keep: bool = False) -> AtStep:
        """Gather step by step, so that the samples of a step stay in the processor's caches until they are used.

        Those of a few kilobytes are gathered for several steps at once.
        """
        by_step = index.transpose(0, 1).contiguous()
        together = SMALL_BYTES // max(1, by_step[:1].numel() * self._bytes)
        if together < _FEW_STEPS or self.transform is not None:
            indices = by_step.unbind()
            return lambda k: partial(self._minibatch, indices[k])

        @lru_cache(maxsize=1)
        def block(number: int) -> list[tuple[Tensor, ...]]:
            samples = self.gather(by_step[number * together : (number + 1) * together])
            return [leaf.unbind() for leaf in flatten(samples)[0]]

        def minibatch(leaves: list[Tensor], rows: Rows | None = None) -> Any:
            """Return a copy, because an objective may write into it."""
            some = leaves if rows is None else [leaf[rows.index] for leaf in leaves]
            return unflatten([leaf.clone() for leaf in some], self._structure)

        def at_step(k: int) -> Gather:
            """Look the step up here, because compiled code would be compiled once more for every step that it saw."""
            return partial(minibatch, [leaf[k % together] for leaf in block(k // together)])

        return at_step

    def minibatches_and_all(
        self, index: Tensor, whole: Sequence[Tensor], keep: bool = False
    ) -> tuple[AtStep, WholeData]:
        """Gather both when they are asked for."""
        return self.minibatches(index), lambda places: self.gather(torch.stack([whole[place] for place in places]))

    def gather(self, index: Tensor) -> Any:
        """Return the samples at ``index [...]``, leaves ``[..., *sample]``."""
        rows = index.reshape(-1)
        batch = [leaf.index_select(0, rows).view(*index.shape, *leaf.shape[1:]) for leaf in self._leaves]
        samples = unflatten(batch, self._structure)
        return samples if self.transform is None else self.transform(samples)

    def _minibatch(self, index: Tensor, rows: Rows | None = None) -> Any:
        """Return the samples of some clients, of all if None, at ``index [C, B]``."""
        return self.gather(index if rows is None else index[rows.index])


class MixedSource(Source):
    """Gathers samples of several shapes, each from a source of its own; positions count through all sources.

    The samples of one call have one shape: clients are computed together only if theirs do.
    """

    def __init__(self, sources: Sequence[TensorSource], offsets: Tensor) -> None:
        """Join sources.

        Args:
            sources: One for each shape.
            offsets: ``[sources]``, ascending from 0; source k holds the positions from ``offsets[k]`` on.
        """
        self._sources = tuple(sources)
        self._offsets = offsets

    def place(self, device: torch.device, dtype: torch.dtype) -> MixedSource:
        """Return a copy with every source on the device."""
        return MixedSource([source.place(device, dtype) for source in self._sources], self._offsets)

    def minibatches(self, index: Tensor, keep: bool = False) -> AtStep:
        """Give the minibatches of clients whose samples have one shape."""
        source, start = self._of(index)
        return source.minibatches(index - start, keep)

    def minibatches_and_all(
        self, index: Tensor, whole: Sequence[Tensor], keep: bool = False
    ) -> tuple[AtStep, WholeData]:
        """Give the minibatches and all samples of clients whose samples have one shape."""
        source, start = self._of(index)
        return source.minibatches_and_all(index - start, [positions - start for positions in whole], keep)

    def _of(self, index: Tensor) -> tuple[TensorSource, int]:
        number = int(torch.searchsorted(self._offsets, index.flatten()[:1].cpu(), right=True)) - 1
        return self._sources[number], int(self._offsets[number])


class LoadedSource(Source):
    """Stacks samples that a ``DataLoader`` brings, one client's round at a time, in the order they are asked for."""

    in_order = True

    def __init__(
        self, items: Iterator[Any], device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> None:
        """Take the samples of every client of every cohort as they come.

        Args:
            items: A client's samples of a round, leaves ``[K * B, ...]``, or ``[n, ...]`` where all are asked for.
            device: Where samples go; None leaves them where they are.
            dtype: Dtype of real numbers; None leaves them as they are.
        """
        self._items = items
        self._kept: deque[Any] = deque()
        self._has_warned = False
        self._device = device
        self._dtype = dtype

    def place(self, device: torch.device, dtype: torch.dtype) -> LoadedSource:
        """Return this source, which moves items as they arrive."""
        self._device, self._dtype = device, dtype
        return self

    def minibatches(self, index: Tensor, keep: bool = False) -> AtStep:
        """Stack the next C items; the loader was given the positions beforehand, here they only tell the shape."""
        clients, steps, batch = index.shape
        drawn = self._draw(clients, keep)

        def stack(*leaves: Tensor) -> Tensor:
            return self._move(torch.stack([repeat_last(leaf.unflatten(0, (-1, batch)), steps) for leaf in leaves]))

        data = map_tensors(stack, *drawn)
        return lambda k: partial(_given, map_tensors(lambda t: t[:, k], data))

    def minibatches_and_all(
        self, index: Tensor, whole: Sequence[Tensor], keep: bool = False
    ) -> tuple[AtStep, WholeData]:
        """Take all samples of the next C clients, and pick the minibatches from them."""
        drawn = self._draw(len(index), keep)
        local = []
        for positions, minibatches in zip(whole, index.cpu(), strict=True):
            ascending, order = positions.cpu().sort()
            local.append(order[torch.searchsorted(ascending, minibatches)])

        def step(k: int) -> Gather:
            def pick(*leaves: Tensor) -> Tensor:
                return self._move(torch.stack([leaf[own[k]] for leaf, own in zip(leaves, local, strict=True)]))

            return partial(_given, map_tensors(pick, *drawn))

        def everything(places: Sequence[int]) -> Any:
            return map_tensors(lambda *leaves: self._move(torch.stack(leaves)), *(drawn[place] for place in places))

        return step, everything

    def ahead(self, places: Sequence[int]) -> LoadedSource:
        """Take in all clients up to the last of ``places``, and keep them to be given in their turn."""
        drawn = self._draw(max(places) + 1, keep=True)
        return LoadedSource(iter([drawn[place] for place in places]), self._device, self._dtype)

    def _draw(self, num_clients: int, keep: bool) -> list[Any]:
        drawn = [self._kept.popleft() if self._kept else next(self._items) for _ in range(num_clients)]
        if not self._has_warned:
            self._has_warned = _has_warned_of_lost_numbers(flatten(drawn)[0], self._dtype)
        if keep:
            self._kept.extendleft(reversed(drawn))
        return drawn

    def _move(self, tensor: Tensor) -> Tensor:
        return _moved(tensor, self._device, self._dtype, non_blocking=True)


class PartSource(Source):
    """Gives the samples of some clients among others, from samples that were drawn for all of them together."""

    in_order = True

    def __init__(self, at_step: AtStep, whole: WholeData | None, places: slice) -> None:
        """Take the samples of all.

        Args:
            at_step: Gives what gathers the minibatches of all clients at a step.
            whole: Gives all samples of clients; None in a phase that asks for minibatches alone.
            places: Places of some of the clients among all.
        """
        self._at_step = at_step
        self._whole = whole
        self._places = places

    def place(self, device: torch.device, dtype: torch.dtype) -> PartSource:
        """Return this source: the samples were placed before they were drawn."""
        return self

    def minibatches(self, index: Tensor, keep: bool = False) -> AtStep:
        """Give these clients' part of every minibatch, at the places rather than by ``index``."""
        return lambda k: partial(self._part_of, self._at_step(k))

    def minibatches_and_all(
        self, index: Tensor, whole: Sequence[Tensor], keep: bool = False
    ) -> tuple[AtStep, WholeData]:
        """Give these clients' part of every minibatch, and all their samples."""
        everything = self._whole
        assert everything is not None
        return self.minibatches(index), lambda places: everything([self._places.start + place for place in places])

    def _part_of(self, gather: Gather, rows: Rows | None = None) -> Any:
        return _given(map_tensors(lambda leaf: leaf[self._places], gather()), rows)


def _given(samples: Any, rows: Rows | None = None) -> Any:
    """Return samples that are at hand already, those of some clients or of all."""
    return samples if rows is None else rows.of(samples)


def _moved(
    tensor: Tensor, device: torch.device | None, dtype: torch.dtype | None, non_blocking: bool = False
) -> Tensor:
    """Return a tensor on a device, real numbers in ``dtype``."""
    if not tensor.is_floating_point():
        return tensor.to(device, non_blocking=non_blocking)
    return tensor.to(device, dtype, non_blocking=non_blocking)


def _has_warned_of_lost_numbers(leaves: Sequence[Tensor], dtype: torch.dtype | None) -> bool:
    """Warn if samples hold whole numbers that are others in ``dtype``, and return whether they do."""
    found = any(_loses_numbers(leaf, dtype) for leaf in leaves)
    if found:
        warnings.warn(
            "Samples hold whole numbers beyond 2^24 in float64. Clients get real numbers in the parameters' "
            f"{dtype}, which does not tell whole numbers of that size apart. Subtract and scale them in the data "
            "set (time stamps, say), or give them as integers, which stay what they are.",
            stacklevel=2,
        )
    return found


def _loses_numbers(tensor: Tensor, dtype: torch.dtype | None) -> bool:
    """Return whether several whole numbers of a float64 tensor are others in ``dtype``.

    A single one may be a mask's, and from 2^53 on all numbers are whole.
    """
    if tensor.dtype != torch.float64 or dtype in (None, torch.float64) or not tensor.numel():
        return False
    low, high = tensor.aminmax()
    if max(-float(low), float(high)) < _EXACT_IN_FLOAT32:  # not if one is NaN
        return False
    size = tensor.abs()
    large = size[(size >= _EXACT_IN_FLOAT32) & (size < _ALL_WHOLE) & (tensor == tensor.round())]
    return len(large[large.to(dtype) != large].unique()) > 1
