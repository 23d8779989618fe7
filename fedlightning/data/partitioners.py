"""Methods that split a data set among clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedlightning.core.errors import InvalidValueError
from fedlightning.core.validation import require
from fedlightning.data.partition import Partition


@dataclass(frozen=True)
class Parts:
    """Holds the clients' samples, and which of them are for what.

    Attributes:
        train: Training samples of every client; all of its samples where nobody has set some aside.
        val: Validation samples of every client; None where nobody has set some aside.
        test: Test samples of every client, likewise.
    """

    train: Partition
    val: Partition | None = None
    test: Partition | None = None

    @property
    def whole(self) -> Partition:
        """All samples of every client."""
        given = [part for part in (self.train, self.val, self.test) if part is not None]
        return Partition.of(torch.cat(own) for own in zip(*given, strict=True)) if len(given) > 1 else self.train


class Partitioner(ABC):
    """Splits a data set among clients by one column (labels, persons, ...)."""

    @abstractmethod
    def split(self, column: Tensor, seed: int) -> Partition:
        """Split the samples among the clients.

        Args:
            column: ``[n]`` integers, one a sample.
            seed: Seed of the draw; equal seeds give equal partitions.

        Returns:
            A partition in which every client holds at least one sample.

        Raises:
            ValueError: If there are too few samples.
        """

    def fingerprint(self) -> str:
        """Return what the partition depends on beside its arguments, such as a digest of a file; empty by default."""
        return ""

    def parts(self, column: Tensor, seed: int) -> Parts:
        """Split the samples among the clients, and what is to train on from what is to validate and to test on.

        By default, nothing is set aside; data whose clients hold their own do so then.

        Args:
            column: ``[n]`` integers, one a sample.
            seed: Seed of the draw; equal seeds give equal parts.
        """
        return Parts(self.split(column, seed))


@dataclass(frozen=True)
class IID(Partitioner):
    """Splits samples uniformly at random into parts whose sizes differ by at most one.

    Args:
        num_clients: Number N >= 1 of clients.
    """

    num_clients: int

    def __post_init__(self) -> None:
        require_count(self, "num_clients")

    def split(self, column: Tensor, seed: int) -> Partition:
        """Shuffle the samples and cut them into parts."""
        require_enough(self, column, self.num_clients)
        return Partition.equal(torch.randperm(len(column), generator=generator_of(seed)), self.num_clients)


@dataclass(frozen=True)
class Dirichlet(Partitioner):
    """Splits every class among the clients by a Dirichlet draw (Yurochkin et al., ICML 2019).

    Clients differ in size as well. Hsu, Qi and Brown (2019) draw a client's mixture of classes instead, and give all
    clients equally many samples. NIID-Bench (Li et al., ICDE 2022) and PFLlib (Zhang et al., JMLR 2025) draw with
    ``balanced``, the one with ``min_size=10``, the other with ``min_size=40`` for its tables.

    Args:
        num_clients: Number N >= 1 of clients.
        alpha: Concentration > 0; the smaller, the fewer classes a client holds.
        min_size: Least number >= 1 of samples of a client; draws are repeated until every client has as many, a hundred
            times at most, a thousand times if ``balanced``.
        balanced: Whether a client that holds 1/N of all samples or more gets none of the remaining classes, but for
            one sample by rounding; classes are drawn in ascending order.
    """

    num_clients: int
    alpha: float
    min_size: int = 1
    balanced: bool = False

    def __post_init__(self) -> None:
        require(self, "alpha", above=0.0)
        require_count(self, "num_clients", "min_size")

    def split(self, column: Tensor, seed: int) -> Partition:
        """Draw each client's share of every class and assign every sample to exactly one client.

        Raises:
            ValueError: If there are too few samples, or no draw gives every client enough.
        """
        require_enough(self, column, self.num_clients * self.min_size)
        draw = np.random.default_rng(seed % 2**64)  # NumPy takes none below 0
        labels = column.numpy()
        places = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        draws = 1000 if self.balanced else 100
        for _ in range(draws):
            members, cuts = [], []
            sizes = np.zeros(self.num_clients, dtype=int)
            for place in places:
                members.append(draw.permutation(place))
                cuts.append(self._cuts(draw, sizes, len(place), len(labels)))
                sizes += np.diff(cuts[-1])
            if sizes.min() >= self.min_size:
                pieces = [np.split(own, cut[1:-1]) for own, cut in zip(members, cuts, strict=True)]
                return Partition.of(np.concatenate(part) for part in zip(*pieces, strict=True))
        raise InvalidValueError(
            f"Dirichlet(num_clients={self.num_clients}, alpha={self.alpha}, min_size={self.min_size}): no draw of "
            f"{draws} gave every client {self.min_size} of the {len(column)} samples. Lower min_size or num_clients, "
            "or raise alpha."
        )

    def _cuts(self, draw: np.random.Generator, sizes: np.ndarray, members: int, samples: int) -> np.ndarray:
        """Draw where one class is cut, ``[N + 1]``, for clients that hold ``sizes [N]`` of all samples so far."""
        shares = draw.dirichlet(np.full(self.num_clients, self.alpha))
        if not self.balanced:
            inner = (np.cumsum(shares)[:-1] * members).round().astype(int)
            return np.concatenate([[0], inner, [members]])
        open_to = sizes * self.num_clients < samples
        shares = np.where(open_to, shares, 0.0)
        if not shares.sum() > 0:  # of an alpha so small that the shares of all others are zero in floating point
            shares = open_to / open_to.sum()
        inner = (np.cumsum(shares / shares.sum())[:-1] * members).astype(int)
        return np.concatenate([[0], inner, [members]])


@dataclass(frozen=True)
class Shards(Partitioner):
    """Sorts samples by label, cuts them into equal shards, and gives each client some (McMahan et al., 2017).

    Args:
        num_clients: Number N >= 1 of clients.
        shards_per_client: Number >= 1 of shards that a client gets; 1 gives equal parts in the order of the labels.
    """

    num_clients: int
    shards_per_client: int = 2

    def __post_init__(self) -> None:
        require_count(self, "num_clients", "shards_per_client")

    def split(self, column: Tensor, seed: int) -> Partition:
        """Sort samples by label, cut shards and assign them; samples of one label are in random order."""
        require_enough(self, column, self.num_clients * self.shards_per_client)
        generator = generator_of(seed)
        shuffled = torch.randperm(len(column), generator=generator)
        by_label = shuffled[column[shuffled].argsort(stable=True)]
        shards = Partition.equal(by_label, self.num_clients * self.shards_per_client)
        if self.shards_per_client == 1:
            return shards
        dealt = torch.randperm(len(shards), generator=generator).view(self.num_clients, self.shards_per_client)
        return Partition.of(torch.cat([shards[int(shard)] for shard in hand]) for hand in dealt)


@dataclass(frozen=True)
class ByGroup(Partitioner):
    """Makes one client of each value of the column, such as a person, a speaker or a writer.

    Args:
        num_clients: Number N >= 1 of clients among whom the groups are shared out at random, in numbers of groups that
            differ by at most one, as NIID-Bench does with FEMNIST's writers (Li et al., ICDE 2022, Section IV-B); null
            for a client a group.
    """

    num_clients: int | None = None

    def __post_init__(self) -> None:
        require(self, "num_clients", at_least=1, optional=True)

    def split(self, column: Tensor, seed: int) -> Partition:
        """Sort samples by value; a client a group makes clients in ascending order of the value, whatever the seed.

        Raises:
            ValueError: If there are fewer groups than clients.
        """
        require_enough(self, column, 1)
        _, sizes = torch.unique(column, return_counts=True)
        groups = Partition(column.argsort(stable=True), torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))
        if self.num_clients is None:
            return groups
        if self.num_clients > len(groups):
            raise InvalidValueError(f"{self}: there are {len(groups)} groups. Use as many clients or fewer.")
        hands = Partition.equal(torch.randperm(len(groups), generator=generator_of(seed)), self.num_clients)
        return Partition.of(torch.cat([groups[int(group)] for group in hand]) for hand in hands)


@dataclass(frozen=True)
class SourceTargetShare(Partitioner):
    """Gives half of the clients mostly source samples, the other half mostly target samples (FedMM, Fig. 2).

    The first half of the clients shares a part p of the source samples and 1 - p of the target samples, the second half
    the rest: p = 1 separates the domains, p = 0.5 mixes them evenly.

    Args:
        num_clients: Number N >= 2 of clients, even.
        p: Share 0 <= p <= 1.
    """

    num_clients: int = 2
    p: float = 1.0

    def __post_init__(self) -> None:
        require(self, "num_clients", "p")
        if self.num_clients < 2 or self.num_clients % 2:
            raise InvalidValueError(
                f"SourceTargetShare(num_clients={self.num_clients}): expected an even number of clients."
            )
        if not 0 <= self.p <= 1:
            raise InvalidValueError(f"SourceTargetShare(p={self.p}): expected 0 <= p <= 1.")

    def split(self, column: Tensor, seed: int) -> Partition:
        """Split samples by domain, 0 for source and 1 for target.

        Raises:
            ValueError: If a half has fewer samples than clients.
        """
        require_enough(self, column, self.num_clients)
        generator = generator_of(seed)
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
                raise InvalidValueError(
                    f"SourceTargetShare(num_clients={self.num_clients}, p={self.p}): one half of the clients shares "
                    f"{len(pooled)} samples, each of its {self.num_clients // 2} clients needs at least one. Use fewer "
                    "clients, or p nearer to 0.5."
                )
            mixed = pooled[torch.randperm(len(pooled), generator=generator)]
            parts.extend(Partition.equal(mixed, self.num_clients // 2))
        return Partition.of(parts)


def require_count(owner: object, *names: str) -> None:
    """Raise an error unless the attributes are whole numbers from 1 on."""
    for name in names:
        require(owner, name)
        if getattr(owner, name) < 1:
            raise InvalidValueError(f"{type(owner).__name__}({name}={getattr(owner, name)}): expected at least 1.")


def require_enough(partitioner: Partitioner, column: Tensor, needed: int) -> None:
    """Raise an error before any drawing if there are fewer samples than the split needs."""
    if len(column) < needed:
        raise InvalidValueError(
            f"{partitioner}: at least {needed:,} samples are needed, there are {len(column):,}. Use fewer clients, "
            "fewer samples or shards a client, or more data."
        )


def generator_of(seed: int) -> torch.Generator:
    """Return a generator of a partitioner's random numbers."""
    return torch.Generator().manual_seed(seed)
