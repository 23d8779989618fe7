"""The updates of a cohort as rows of one matrix, which no process has to hold as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from fedlightning.channel.robust.columns import double
from fedlightning.core.errors import InvalidValueError

T = TypeVar("T")

_ENTRIES = 2**22  # of a block: 32 MiB in float64
_LARGEST = 1e140  # so that the squares of a float64 row add up to a number


class Peers(Protocol):
    """Connects the processes that hold rows, as :class:`fedlightning.federation.processes.Processes` does."""

    @property
    def count(self) -> int:
        """The number of processes."""

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""

    def collect(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of their ranks."""


class ClientRows:
    """Gives access to the rows of one field in the order of the clients' ids, wherever the rows lie.

    Chunks of rows stay as they are; a block of columns is put together when it is looked at. Of several processes, each
    holds the rows of its own clients, and every process sees the same blocks. Block by block, all rows pass to all
    processes, so that every process comes to the bits that a single one would come to. Entries of float64 rows beyond
    1e140 are taken as 1e140.

    Attributes:
        count: The number of rows, S, over all processes.
    """

    def __init__(
        self,
        parts: Sequence[Tensor],
        client_ids: Sequence[int],
        processes: Peers | None = None,
        columns: int | None = None,
    ) -> None:
        """Hold the rows of this process's clients.

        Args:
            parts: Chunks ``[C, n]`` of rows, one or more; ``[0, n]`` for a process without clients. Rows of several
                dtypes are taken as the smallest dtype that holds all of them. Columns with NaN or infinities (buffers
                that the server has so itself) count as zero in inner products.
            client_ids: Ids of the clients, chunk after chunk.
            processes: All processes that hold rows of this field; None for this one alone.
            columns: Number of columns of a block; None for blocks of 32 MiB at most, in float64.

        Raises:
            ValueError: If rows have different lengths.
        """
        self._parts = list(parts)
        self._processes = processes if processes is not None and processes.count > 1 else None
        lengths = {part.shape[1] for part in self._parts}
        dtype = reduce(torch.promote_types, (part.dtype for part in self._parts))
        known = (list(client_ids), lengths, dtype)
        everyone = [known] if self._processes is None else self._processes.collect(known)
        lengths = set().union(*(each for _, each, _ in everyone))
        if len(lengths) != 1:
            raise InvalidValueError(
                f"Clients of one cohort sent a field in different lengths, {sorted(lengths)}. If it holds something of "
                "every local step, set the data module's local_steps."
            )
        self._length = lengths.pop()
        self._dtype = reduce(torch.promote_types, (each for _, _, each in everyone))
        ids = sorted(client for own, _, _ in everyone for client in own)
        places = {client: place for place, client in enumerate(ids)}
        self._places = [places[client] for client in client_ids]
        self.count = len(ids)
        self._columns = max(1, _ENTRIES // max(1, self.count)) if columns is None else columns

    def blocks(self) -> Iterator[Tensor]:
        """Yield ``[S, c]`` blocks of consecutive columns, rows in the order of the clients' ids."""
        for start in self._starts():
            yield self._block(start)

    def gram(self, about: Tensor | None = None) -> Tensor:
        """Return the inner products of the rows minus ``about [n]``, ``[S, S]`` float64 on the CPU."""
        total: Tensor | None = None
        for start, block in zip(self._starts(), self.blocks(), strict=True):
            exact = double(block)
            if about is not None:
                exact = exact - double(about[start : start + self._columns])
            exact = exact.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
            total = exact @ exact.T if total is None else total.addmm_(exact, exact.T)
        assert total is not None
        return ((total + total.T) / 2).cpu()

    def combine(self, weights: Tensor) -> Tensor:
        """Return ``weights @ rows``, ``[n]``, in the dtype of the rows, for weights ``[S]``."""
        chosen = weights.nonzero().flatten()
        sums = []
        for block in self.blocks():
            exact = double(block[chosen.to(block.device)])
            sums.append((weights[chosen].to(exact) @ exact).to(block))
        return torch.cat(sums)

    def _starts(self) -> range:
        """Return the first column of every block; a matrix without columns is one block."""
        return range(0, max(1, self._length), self._columns)

    def _read(self, part: Tensor, start: int) -> Tensor:
        """Return some columns of a chunk, with entries whose squares are numbers."""
        columns = part[:, start : start + self._columns]
        if part.dtype != torch.float64:
            return columns
        return torch.where(columns.isinf(), columns, columns.clamp(-_LARGEST, _LARGEST))

    def _block(self, start: int) -> Tensor:
        width = min(self._columns, self._length - start)
        block = torch.zeros(self.count, width, dtype=self._dtype, device=self._parts[0].device)
        first = 0
        for part in self._parts:
            places = torch.tensor(self._places[first : first + len(part)], dtype=torch.long, device=block.device)
            block[places] = self._read(part, start).to(block)
            first += len(part)
        return block if self._processes is None else self._processes.sum(block)  # the other rows are zero here
