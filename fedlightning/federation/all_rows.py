"""The updates of a whole cohort at once, where their sum is not enough."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedlightning.channel.base import Exchange
from fedlightning.channel.channel import Channel
from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.processes import Processes


@dataclass(frozen=True)
class RowsHere:
    """Gives access to the rows of a matrix that lies in this process.

    Attributes:
        rows: ``[S, n]``.
    """

    rows: Tensor

    @property
    def count(self) -> int:
        """The number of rows, S."""
        return len(self.rows)

    def blocks(self) -> Iterator[Tensor]:
        """Yield the matrix."""
        yield self.rows

    def gram(self) -> Tensor:
        """Return the inner products of the rows, ``[S, S]`` float64."""
        rows = self.rows.double()
        return rows @ rows.T

    def combine(self, weights: Tensor) -> Tensor:
        """Return ``weights @ rows``, ``[n]``, for weights ``[S]``."""
        return weights.to(self.rows) @ self.rows


class AllRows:
    """Keeps the updates of all clients that count, and puts them together as a channel says.

    It stands in for a weighted mean; all clients weigh the same.
    """

    def __init__(self, channel: Channel, exchange: Exchange, purpose: int) -> None:
        """Start without clients.

        Args:
            channel: Has the aggregation, and the attack.
            exchange: The exchange.
            purpose: For the draws of the attack.
        """
        self._channel = channel
        self._exchange = exchange
        self._purpose = purpose
        self._parts: dict[str, list[Tensor]] = {}
        self._means: dict[str, Tensor] = {}
        self._weight = 0.0

    def add(self, values: Mapping[str, Tensor], weights: Tensor) -> None:
        """Add the values of C clients, ``[C, ...]`` each; those of weight 0 are left out."""
        counted = weights != 0
        for name, value in values.items():
            self._parts.setdefault(name, []).append(value if bool(counted.all()) else value[counted])
        self._weight += float(counted.sum())

    def gather(self, processes: Processes, device: torch.device) -> None:
        """Take the rows of all processes; every process must call this."""
        if processes.count == 1:
            return
        mine = {name: torch.cat(parts).cpu() for name, parts in self._parts.items()}
        everywhere = processes.collect((mine, self._weight))
        names = next((list(rows) for rows, _ in everywhere if rows), [])
        self._parts = {name: [rows[name].to(device) for rows, _ in everywhere if rows] for name in names}
        self._weight = sum(weight for _, weight in everywhere)

    def finish(self, client_ids: Sequence[int], counts: Collection[str]) -> None:
        """Let attackers send what they will, and put the rows together.

        Args:
            client_ids: The clients that count, of all processes, in the order of the rows.
            counts: Names of fields that count something: of these the lower median is taken.

        Raises:
            InvalidValueError: If clients sent different shapes.
        """
        rows = {name: _joined(name, parts) for name, parts in self._parts.items()}
        flat = {name: value.reshape(len(value), -1) for name, value in rows.items() if name not in counts}
        if self._channel.adversary is not None and flat:
            exchange = replace(self._exchange, client_ids=list(client_ids))
            attackers = self._channel.adversary.attackers(exchange).to(next(iter(flat.values())).device)
            flat = dict(self._channel.adversary.apply(flat, attackers, exchange, self._purpose))
        for name, value in rows.items():
            if name in counts:
                self._means[name] = value.median(dim=0).values
                continue
            rule = self._channel.aggregate
            mean = flat[name].mean(0) if rule is None else rule.aggregate(RowsHere(flat[name]))
            self._means[name] = mean.to(value.dtype).view(value.shape[1:])
        self._parts = {}

    def __contains__(self, name: str) -> bool:
        return name in self._parts or name in self._means

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._means) or list(self._parts))

    @property
    def weight(self) -> float:
        """The number of clients added so far."""
        return self._weight

    def mean(self, name: str) -> Tensor:
        """Return the aggregate over the clients added."""
        return self._means[name]

    def sum(self, name: str) -> Tensor:
        """Return the aggregate times the number of clients."""
        return self._means[name] * self._weight


def _joined(name: str, parts: Sequence[Tensor]) -> Tensor:
    shapes = {part.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise InvalidValueError(
            f"Clients of one cohort sent '{name}' in different shapes, "
            f"{' and '.join(str(list(shape)) for shape in shapes)}. "
            "If it holds something of every local step, set the data module's local_steps."
        )
    return torch.cat(list(parts))
