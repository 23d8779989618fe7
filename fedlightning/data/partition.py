"""The assignment of a data set's samples to clients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedlightning.core.errors import InvalidTypeError, InvalidValueError


class Partition(Sequence[Tensor]):
    """Stores which samples each client holds: ``partition[i]`` are the positions ``[n_i]`` of client i's samples.

    A partition is stored as one order of all samples and N + 1 offsets into it, so that a million clients cost little
    more memory than their samples.

    Attributes:
        order: ``[n]``, positions of all clients' samples, client by client.
        offsets: ``[N + 1]``, where each client's samples begin in ``order``, and the end.
    """

    def __init__(self, order: Tensor, offsets: Tensor, allow_empty: bool = False) -> None:
        """Give client i the samples ``order[offsets[i]:offsets[i + 1]]``.

        Args:
            order: ``[n]``, positions of all clients' samples, client by client.
            offsets: ``[N + 1]``, ascending from 0 to n.
            allow_empty: Whether a client may hold no samples, as of validation and test data.

        Raises:
            ValueError: If a client holds no samples although each must, or two clients hold the same sample.
        """
        self.order = order
        self.offsets = offsets
        sizes = self.sizes
        if not allow_empty and (sizes == 0).any():
            empty = (sizes == 0).nonzero().flatten()
            raise InvalidValueError(
                f"Client {int(empty[0])} has no samples ({len(empty)} of {len(sizes)} clients are empty). "
                "Use fewer clients, a larger alpha or min_size in Dirichlet, or leave such clients out."
            )
        if len(torch.unique(order)) < len(order):
            values, counts = torch.unique(order, return_counts=True)
            raise InvalidValueError(
                f"Sample {int(values[counts > 1][0])} belongs to more than one client. Partition the data: every "
                "sample to at most one client."
            )

    @classmethod
    def of(cls, parts: Iterable[Sequence[int] | Tensor | np.ndarray], allow_empty: bool = False) -> Partition:
        """Build a partition from one index array ``[n_i]`` per client.

        Raises:
            TypeError: If a client's samples are a mask of booleans.
            ValueError: If there are no clients, a client holds no samples although each must, or two clients hold the
                same sample.
        """
        tensors = [_positions(client, part) for client, part in enumerate(parts)]
        if not tensors:
            raise InvalidValueError("The federation has no clients.")
        sizes = torch.tensor([len(part) for part in tensors])
        return cls(torch.cat(tensors), torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)]), allow_empty)

    @classmethod
    def equal(cls, order: Tensor, num_clients: int) -> Partition:
        """Cut ``order [n]`` into consecutive parts whose sizes differ by at most one.

        Raises:
            ValueError: Unless 1 <= ``num_clients`` <= n.
        """
        if num_clients < 1:
            raise InvalidValueError(f"num_clients={num_clients}: expected at least 1.")
        if num_clients > len(order):
            raise InvalidValueError(
                f"{num_clients:,} clients cannot share {len(order):,} samples: every client needs at least one. Use "
                "fewer clients or more data."
            )
        offsets = torch.linspace(0, len(order), num_clients + 1, dtype=torch.float64).round().long()
        return cls(order, offsets)

    @cached_property
    def sizes(self) -> Tensor:
        """Return the number of samples of each client, ``[N]``."""
        return self.offsets.diff()

    @cached_property
    def digest(self) -> str:
        """Return twelve hexadecimal digits that change when the assignment of samples to clients changes."""
        hashed = hashlib.sha256(self.offsets.numpy().tobytes())
        hashed.update(self.order.numpy().tobytes())
        return hashed.hexdigest()[:12]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __repr__(self) -> str:
        """Return the number of clients and the range of their numbers of samples."""
        sizes = self.sizes.tolist()
        least, most = min(sizes, default=0), max(sizes, default=0)
        each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        return f"Partition({len(self):,} clients of {each} samples)"

    def __getitem__(self, client):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        """Return the positions of one client's samples, ``[n_i]``; clients count from the end where negative.

        Raises:
            IndexError: If there is no such client.
        """
        client = range(len(self))[client]
        start, stop = self.offsets[client : client + 2].tolist()
        return self.order[start:stop]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def hold_out(self, share: float, seed: int) -> tuple[Partition, Partition]:
        """Set a random part of every client's samples aside.

        Args:
            share: Part 0 < share < 1 to set aside, rounded; at least one sample, and at least one sample stays.
            seed: Seed of the choice; equal seeds give equal parts.

        Returns:
            What stays, and what is set aside.

        Raises:
            ValueError: If a client has a single sample, or ``share`` is out of range.
        """
        _require_share(share)
        if (self.sizes < 2).any():
            client = int((self.sizes < 2).nonzero()[0])
            raise InvalidValueError(
                f"Client {client} has one sample, nothing can be set aside. Use fewer clients, or a larger min_size in "
                "Dirichlet."
            )
        generator = _generator(seed)
        kept, aside = [], []
        for part in self:
            count = min(max(1, round(share * len(part))), len(part) - 1)
            order = torch.randperm(len(part), generator=generator)
            aside.append(part[order[:count]])
            kept.append(part[order[count:]])
        return Partition.of(kept), Partition.of(aside)

    def hold_out_stretches(
        self, share: float, seed: int, label: Tensor, overlaps: Tensor
    ) -> tuple[Partition, Partition]:
        """Set consecutive samples aside, for data in which neighbouring samples share readings.

        A share of every client's samples of each label is set aside: whole stretches, and the beginning or end of one
        more. Samples that overlap with a sample set aside are dropped, so that what stays and what is set aside have no
        reading in common.

        Args:
            share: Part 0 < share < 1 of a client's samples of each label to set aside, rounded; all but two at most. Of
                a label with few samples all others may have to be dropped.
            seed: Seed of the choice; equal seeds give equal parts.
            label: ``[n]``, label of every sample of the data set.
            overlaps: ``[n - 1]``, whether a sample shares readings with the sample at the next position. No sample may
                share readings with a sample further on.

        Returns:
            What stays, and what is set aside.

        Raises:
            ValueError: If nothing of a client can be set aside, or ``share`` is out of range.
        """
        _require_share(share)
        generator = _generator(seed)
        kept, aside = [], []
        for client, part in enumerate(self):
            own = part.sort().values
            joined = (own.diff() == 1) & overlaps[own[:-1]]
            chosen = torch.zeros(len(own), dtype=torch.bool)
            for value in label[own].unique():
                alike = (label[own] == value).nonzero().flatten()
                ends = (alike.diff() != 1) | ~joined[alike[:-1]]
                stretches = alike.tensor_split(ends.nonzero().flatten() + 1)
                count = max(0, min(round(share * len(alike)), len(alike) - 2))
                chosen[_some_of(stretches, count, generator)] = True
            if not chosen.any():
                raise InvalidValueError(
                    f"Client {client} has {len(own)} samples, too few of each label to set {share} of them aside "
                    "without overlap. Set a larger share aside, or leave the client out."
                )
            beside = torch.zeros_like(chosen)
            beside[1:] |= chosen[:-1] & joined
            beside[:-1] |= chosen[1:] & joined
            kept.append(own[~chosen & ~beside])
            aside.append(own[chosen])
        return Partition.of(kept), Partition.of(aside)


def _positions(client: int, part: Sequence[int] | Tensor | np.ndarray) -> Tensor:
    if torch.as_tensor(part).dtype is torch.bool:  # as numbers these would be the positions 0 and 1
        raise InvalidTypeError(
            f"Partition.of: client {client} has a mask of {len(part)} booleans; expected the positions of its "
            "samples. They are mask.nonzero().flatten(), of an array mask.nonzero()[0]."
        )
    return torch.as_tensor(part, dtype=torch.long).flatten()


def _some_of(stretches: Sequence[Tensor], count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` samples: whole stretches in random order while they fit, then a part of one more."""
    taken = []
    for place in torch.randperm(len(stretches), generator=generator).tolist():
        stretch = stretches[place]
        size = min(count, len(stretch))
        start = (len(stretch) - size) * int(torch.randint(2, (), generator=generator))
        taken.append(stretch[start : start + size])
        count -= size
    return torch.cat(taken)


def _require_share(share: float) -> None:
    if not 0 < share < 1:
        raise InvalidValueError(f"share={share}: expected 0 < share < 1.")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
