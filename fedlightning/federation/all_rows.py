"""The updates of a whole cohort at once, where their sum is not enough."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from fedlightning.channel.base import Exchange
from fedlightning.channel.channel import Channel
from fedlightning.channel.robust.mean import Mean
from fedlightning.channel.robust.rows import ClientRows
from fedlightning.core.seeding import derive_seed
from fedlightning.federation.aggregation import BUFFERS, WeightedMean, of_different_shapes, require_same_fields
from fedlightning.federation.processes import OneProcess, Processes


class AllRows:
    """Keeps the updates of all clients that count, and puts them together as a channel says.

    It stands in for a weighted mean; all clients weigh the same, but for rules that are means. There a client
    multiplies its update by its share of the heaviest client's weight, which enlarges none.

    Updates stay in the chunks and in the processes in which they arrived.
    """

    def __init__(
        self, channel: Channel, exchange: Exchange, purpose: int, whole: Tensor | None = None, heaviest: float = 1.0
    ) -> None:
        """Start without clients.

        Args:
            channel: Has the aggregation, and the attack.
            exchange: The exchange.
            purpose: For the draws of the attack.
            whole: Which averaged buffers are whole numbers, ``[b]``, and count something; None if none is.
            heaviest: Largest weight of a client of the federation.
        """
        self._heaviest = heaviest
        self._whole = whole
        self._channel = channel
        self._rule = Mean() if channel.aggregate is None else channel.aggregate
        self._exchange = exchange
        self._purpose = purpose
        self._processes: Processes = OneProcess()
        self._parts: dict[str, list[Tensor]] = {}
        self._means: dict[str, Tensor] = {}
        self._sent: dict[str, list[Tensor]] = {}
        self._weights: list[Tensor] = []
        self._weight = 0.0

    def add(self, values: Mapping[str, Tensor], weights: Tensor) -> None:
        """Add the values of C clients, ``[C, ...]`` each; those of weight 0 are left out."""
        counted = weights != 0
        for name, value in values.items():
            self._parts.setdefault(name, []).append(value if bool(counted.all()) else value[counted])
        self._weights.append(weights[counted])
        self._weight += float(weights.sum())

    def gather(self, processes: Processes, device: torch.device) -> None:
        """Take note of the processes that hold rows; every process must call this.

        Raises:
            ValueError: If the clients of another process have values with other names or shapes.
        """
        if processes.count == 1:
            return
        self._processes = processes
        mine = [(name, parts[0].shape[1:], parts[0].dtype) for name, parts in self._parts.items()]
        everywhere = processes.collect((mine, self._weight))
        require_same_fields([fields for fields, _ in everywhere])
        known = next((fields for fields, _ in everywhere if fields), [])
        if not mine:
            self._parts = {name: [torch.empty(0, *shape, dtype=dtype, device=device)] for name, shape, dtype in known}
            self._weights = [torch.empty(0, device=device)]
        self._weight = sum(weight for _, weight in everywhere)

    def finish(
        self, client_ids: Sequence[int], counts: Collection[str], norms: Mapping[str, str] | None = None
    ) -> None:
        """Let adversaries send what they will, and put the rows together; every process must call this.

        Args:
            client_ids: The clients of this process that count, in the order in which they were added.
            counts: Names of fields that count something: of these the lower median is taken, or the mean if the rule is
                one.
            norms: Names of counts that are squared norms of other fields, by theirs: those of what adversaries send.

        Raises:
            InvalidValueError: If clients sent different shapes, or too few for the rule.
        """
        norms = {} if norms is None else norms
        in_order = sorted(enumerate(self._parts.items()), key=lambda part: part[1][0] in norms)  # after their fields
        for place, (name, parts) in in_order:
            shape = _shape_of_all(name, parts)
            flat = [part.reshape(len(part), prod(shape)) for part in parts]
            if norms.get(name) in self._sent:
                flat = [sent.square().sum(1, keepdim=True) for sent in self._sent[norms[name]]]
            whole = self._whole if name == BUFFERS else None
            if name in counts or (whole is not None and bool(whole.all())):
                mean = self._count(flat, client_ids)
            elif whole is None or not bool(whole.any()):
                mean = self._aggregate(self._as_sent(name, flat, place, client_ids), client_ids)
            else:
                whole = whole.to(flat[0].device)
                mean = flat[0].new_empty(len(whole))
                mean[whole] = self._count([part[:, whole] for part in flat], client_ids)
                real = self._as_sent(name, [part[:, ~whole] for part in flat], place, client_ids)
                mean[~whole] = self._aggregate(real, client_ids)
            self._means[name] = mean.view(shape)
        self._parts, self._sent = {}, {}

    def _count(self, rows: list[Tensor], client_ids: Sequence[int]) -> Tensor:
        """Return the mean of the rows of a count if the rule is one, otherwise their lower median by elements."""
        if self._rule.is_mean:
            mean = WeightedMean()
            for part, weights in zip(rows, self._weights, strict=True):
                mean.add({BUFFERS: part}, weights)
            mean.gather(self._processes, rows[0].device)
            return mean.mean(BUFFERS)
        blocks = ClientRows(rows, client_ids, self._processes).blocks()
        return torch.cat([block.median(dim=0).values for block in blocks])

    def _as_sent(self, name: str, rows: list[Tensor], place: int, client_ids: Sequence[int]) -> list[Tensor]:
        """Return the rows of one field with those that adversaries send in place of their own."""
        if self._channel.adversary is None:
            return rows
        purpose = derive_seed(self._purpose, place)
        self._sent[name] = self._channel.adversary.act(rows, client_ids, self._exchange, purpose, self._processes)
        return self._sent[name]

    def _aggregate(self, rows: list[Tensor], client_ids: Sequence[int]) -> Tensor:
        """Return what the rule makes of the rows of one field."""
        if self._heaviest == 1.0:
            return self._rule.aggregate(ClientRows(rows, client_ids, self._processes))
        pairs = zip(rows, self._weights, strict=True)
        scaled = [part * (weights.to(part) / self._heaviest)[:, None] for part, weights in pairs]
        found = ClientRows(scaled, client_ids, self._processes)
        return self._rule.aggregate(found) * (found.count * self._heaviest / self._weight)

    def __contains__(self, name: str) -> bool:
        return name in self._parts or name in self._means

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._means) or list(self._parts))

    @property
    def weight(self) -> float:
        """The total weight added so far."""
        return self._weight

    def mean(self, name: str) -> Tensor:
        """Return the aggregate over the clients added."""
        return self._means[name]

    def sum(self, name: str) -> Tensor:
        """Return the aggregate times the total weight."""
        return self._means[name] * self._weight


def _shape_of_all(name: str, parts: Sequence[Tensor]) -> torch.Size:
    shapes = list(dict.fromkeys(part.shape[1:] for part in parts))
    if len(shapes) > 1:
        raise of_different_shapes(name, shapes)
    return shapes[0]
