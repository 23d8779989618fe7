"""Who holds which samples."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedlightning.core.validation import require


class Partition(Sequence[Tensor]):
    """Samples of every client: ``partition[i]`` holds the positions ``[n_i]`` of client i's samples.

    Stored as one order of all samples and N + 1 offsets into it, so a million clients cost little more than their
    samples.
    """

    def __init__(self, order: Tensor, offsets: Tensor, allow_empty: bool = False) -> None:
        """Client i holds ``order[offsets[i]:offsets[i + 1]]``.

        Args:
            order: Positions of all clients' samples, client by client.
            offsets: ``[N + 1]``, from 0.
            allow_empty: Whether a client may hold no samples, as of validation and test data.

        Raises:
            ValueError: If a client is empty that may not be, or a sample belongs to two clients.
        """
        self.order = order
        self.offsets = offsets
        sizes = self.sizes
        if not allow_empty and (sizes == 0).any():
            empty = (sizes == 0).nonzero().flatten()
            raise ValueError(
                f"Client {int(empty[0])} has no samples ({len(empty)} of {len(sizes)} clients are empty). "
                "Use fewer clients, a larger alpha or min_size in Dirichlet, or leave such clients out."
            )
        if len(torch.unique(order)) < len(order):
            values, counts = torch.unique(order, return_counts=True)
            raise ValueError(
                f"Sample {int(values[counts > 1][0])} belongs to more than one client. Partition the data: every "
                "sample to at most one client."
            )

    @classmethod
    def of(cls, parts: Iterable[Sequence[int] | Tensor | np.ndarray], allow_empty: bool = False) -> Partition:
        """From one index array a client."""
        tensors = [torch.as_tensor(part, dtype=torch.long).flatten() for part in parts]
        if not tensors:
            raise ValueError("The federation has no clients.")
        sizes = torch.tensor([len(part) for part in tensors])
        return cls(torch.cat(tensors), torch.cat([torch.zeros(1, dtype=torch.long), sizes.cumsum(0)]), allow_empty)

    @classmethod
    def equal(cls, order: Tensor, num_clients: int) -> Partition:
        """Consecutive parts of ``order`` whose sizes differ by one at most."""
        if num_clients < 1:
            raise ValueError(f"num_clients={num_clients}: expected at least 1.")
        if num_clients > len(order):
            raise ValueError(
                f"{num_clients:,} clients cannot share {len(order):,} samples: every client needs at least one. Use "
                "fewer clients or more data."
            )
        offsets = torch.linspace(0, len(order), num_clients + 1, dtype=torch.float64).round().long()
        return cls(order, offsets)

    @cached_property
    def sizes(self) -> Tensor:
        """Samples of each client, ``[N]``."""
        return self.offsets.diff()

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits that change with who holds which samples."""
        hashed = hashlib.sha256(self.offsets.numpy().tobytes())
        hashed.update(self.order.numpy().tobytes())
        return hashed.hexdigest()[:12]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, client):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
        """Positions of one client's samples, ``[n_i]``."""
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def hold_out(self, share: float, seed: int) -> tuple[Partition, Partition]:
        """Set a random part of every client's samples aside.

        Args:
            share: Part 0 < share < 1 to set aside, rounded, at least one sample; one at least stays.
            seed: Equal seeds, equal parts.

        Returns:
            What stays, and what is set aside.

        Raises:
            ValueError: If a client has one sample only.
        """
        _require_share(share)
        if (self.sizes < 2).any():
            client = int((self.sizes < 2).nonzero()[0])
            raise ValueError(
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
        """Set stretches of samples that follow each other aside, for samples that share readings with their neighbours.

        Of every client and label a share is set aside, in whole stretches and the beginning or end of one. Whatever
        overlaps with a sample set aside is dropped, so that what stays and what is set aside have no reading in common.

        Args:
            share: Part 0 < share < 1 of a client's samples of each label to set aside, rounded; all but two at most. Of
                a label with few samples all others may have to be dropped.
            seed: Equal seeds, equal parts.
            label: ``[n]``, of all samples.
            overlaps: ``[n - 1]``, whether a sample shares readings with the one at the next position. No sample shares
                any with further ones.

        Returns:
            What stays, and what is set aside.

        Raises:
            ValueError: If nothing of a client can be set aside.
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
                raise ValueError(
                    f"Client {client} has {len(own)} samples, too few of each label to set {share} of them aside "
                    "without overlap. Set a larger share aside, or leave the client out."
                )
            beside = torch.zeros_like(chosen)
            beside[1:] |= chosen[:-1] & joined
            beside[:-1] |= chosen[1:] & joined
            kept.append(own[~chosen & ~beside])
            aside.append(own[chosen])
        return Partition.of(kept), Partition.of(aside)


class Partitioner(ABC):
    """Splits a data set among clients by one column of it (labels, persons, ...)."""

    @abstractmethod
    def split(self, column: Tensor, seed: int) -> Partition:
        """Partition samples.

        Args:
            column: ``[n]`` integers, one a sample.
            seed: Equal seeds, equal partitions.
        """


@dataclass(frozen=True)
class IID(Partitioner):
    """Uniformly at random, in equal parts.

    Args:
        num_clients: Number N of clients.
    """

    num_clients: int

    def __post_init__(self) -> None:
        _require_count(self, "num_clients")

    def split(self, column: Tensor, seed: int) -> Partition:
        """Shuffle and cut."""
        _require_enough(self, column, self.num_clients)
        return Partition.equal(torch.randperm(len(column), generator=_generator(seed)), self.num_clients)


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Every class is shared out by a Dirichlet draw (Hsu, Qi and Brown, 2019): small ``alpha``, few classes a client.

    Args:
        num_clients: Number N of clients.
        alpha: Concentration > 0.
        min_size: Draw again until every client has as many samples; a hundred times at most.
    """

    num_clients: int
    alpha: float
    min_size: int = 1

    def __post_init__(self) -> None:
        require(self, "alpha", above=0.0)
        _require_count(self, "num_clients", "min_size")

    def split(self, column: Tensor, seed: int) -> Partition:
        """Draw shares for each class; every sample goes to exactly one client.

        Raises:
            ValueError: If there are too few samples, or no draw of a hundred gives every client enough.
        """
        _require_enough(self, column, self.num_clients * self.min_size)
        draw = np.random.default_rng(seed)
        labels = column.numpy()
        places = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        for _ in range(100):
            members, cuts = [], []
            for place in places:
                members.append(draw.permutation(place))
                shares = draw.dirichlet(np.full(self.num_clients, self.alpha))
                inner = (np.cumsum(shares)[:-1] * len(place)).round().astype(int)
                cuts.append(np.concatenate([[0], inner, [len(place)]]))
            if np.diff(cuts).sum(axis=0).min() >= self.min_size:
                pieces = [np.split(own, cut[1:-1]) for own, cut in zip(members, cuts, strict=True)]
                return Partition.of(np.concatenate(part) for part in zip(*pieces, strict=True))
        raise ValueError(
            f"Dirichlet(num_clients={self.num_clients}, alpha={self.alpha}, min_size={self.min_size}): no draw of 100 "
            f"gave every client {self.min_size} of the {len(column)} samples. Lower min_size or num_clients, or raise "
            "alpha."
        )


@dataclass(frozen=True)
class Shards(Partitioner):
    """Sort by label, cut into equal shards, deal each client some (McMahan et al., 2017).

    Args:
        num_clients: Number N of clients.
        shards_per_client: 1 gives label-sorted equal parts in order.
    """

    num_clients: int
    shards_per_client: int = 2

    def __post_init__(self) -> None:
        _require_count(self, "num_clients", "shards_per_client")

    def split(self, column: Tensor, seed: int) -> Partition:
        """Sort, cut and deal; ties within a label in random order."""
        _require_enough(self, column, self.num_clients * self.shards_per_client)
        generator = _generator(seed)
        shuffled = torch.randperm(len(column), generator=generator)
        by_label = shuffled[column[shuffled].argsort(stable=True)]
        shards = Partition.equal(by_label, self.num_clients * self.shards_per_client)
        if self.shards_per_client == 1:
            return shards
        dealt = torch.randperm(len(shards), generator=generator).view(self.num_clients, self.shards_per_client)
        return Partition.of(torch.cat([shards[int(shard)] for shard in hand]) for hand in dealt)


@dataclass(frozen=True)
class ByGroup(Partitioner):
    """One client a value of the column: a person, a speaker, a writer."""

    def split(self, column: Tensor, seed: int) -> Partition:
        """Clients in ascending order of the value; the seed changes nothing."""
        _require_enough(self, column, 1)
        _, sizes = torch.unique(column, return_counts=True)
        return Partition(column.argsort(stable=True), torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))


@dataclass(frozen=True)
class SourceTargetShare(Partitioner):
    """Two halves of a federation, one rich in source and one rich in target samples (FedMM, Fig. 2).

    The first half of the clients shares a part p of the source samples and 1 - p of the target samples, the second half
    the rest: p = 1 separates the domains, p = 0.5 mixes them evenly.

    Args:
        num_clients: Number N of clients, even.
        p: Share 0 <= p <= 1.
    """

    num_clients: int = 2
    p: float = 1.0

    def __post_init__(self) -> None:
        require(self, "num_clients", "p")
        if self.num_clients < 2 or self.num_clients % 2:
            raise ValueError(f"SourceTargetShare(num_clients={self.num_clients}): expected an even number of clients.")
        if not 0 <= self.p <= 1:
            raise ValueError(f"SourceTargetShare(p={self.p}): expected 0 <= p <= 1.")

    def split(self, column: Tensor, seed: int) -> Partition:
        """Split by domain, 0 for source and 1 for target.

        Raises:
            ValueError: If a half has fewer samples than clients.
        """
        _require_enough(self, column, self.num_clients)
        generator = _generator(seed)
        halves: tuple[list[Tensor], list[Tensor]] = ([], [])
        for domain, share in ((0, self.p), (1, 1 - self.p)):
            members = (column == domain).nonzero().flatten()
            members = members[torch.randperm(len(members), generator=generator)]
            cut = round(share * len(members))
            halves[0].append(members[:cut])
            halves[1].append(members[cut:])
        parts: list[Tensor] = []
        for half in halves:
            pooled = torch.cat(half)
            if len(pooled) < self.num_clients // 2:
                raise ValueError(
                    f"SourceTargetShare(num_clients={self.num_clients}, p={self.p}): one half of the clients shares "
                    f"{len(pooled)} samples, each of its {self.num_clients // 2} clients needs at least one. Use fewer "
                    "clients, or p nearer to 0.5."
                )
            mixed = pooled[torch.randperm(len(pooled), generator=generator)]
            parts.extend(Partition.equal(mixed, self.num_clients // 2))
        return Partition.of(parts)


def _some_of(stretches: Sequence[Tensor], count: int, generator: torch.Generator) -> Tensor:
    """``count`` of the samples: stretches in random order while they fit, then the beginning or end of one."""
    taken = []
    for place in torch.randperm(len(stretches), generator=generator).tolist():
        stretch = stretches[place]
        size = min(count, len(stretch))
        start = (len(stretch) - size) * int(torch.randint(2, (), generator=generator))
        taken.append(stretch[start : start + size])
        count -= size
    return torch.cat(taken)


def _require_count(owner: object, *names: str) -> None:
    for name in names:
        require(owner, name)
        if getattr(owner, name) < 1:
            raise ValueError(f"{type(owner).__name__}({name}={getattr(owner, name)}): expected at least 1.")


def _require_enough(partitioner: Partitioner, column: Tensor, needed: int) -> None:
    """Refuse a split that no draw can make, before any drawing."""
    if len(column) < needed:
        raise ValueError(
            f"{partitioner}: at least {needed:,} samples are needed, there are {len(column):,}. Use fewer clients, "
            "fewer samples or shards a client, or more data."
        )


def _require_share(share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"share={share}: expected 0 < share < 1.")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
