"""Means over the clients of a cohort, for uploads and for logged values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from operator import itemgetter
from typing import Any, Protocol
from zlib import crc32

import torch
from torch import Tensor

from fedlightning.algorithms.base import PerClient
from fedlightning.core.errors import InvalidValueError
from fedlightning.federation.client_columns import ClientColumn
from fedlightning.federation.processes import Processes
from fedlightning.federation.protocol import Answer, Roster
from fedlightning.federation.validation import tensors_of

BUFFERS = "buffers"
"""Name under which averaged buffers are added up beside the fields of an update."""


class Sums(Protocol):
    """Adds values of clients up, chunk by chunk, or keeps them until all are there (:class:`WeightedMean`)."""

    def add(self, values: Mapping[str, Tensor], weights: Tensor) -> None:
        """Add the values of C clients, ``[C, ...]`` each, with weights ``[C]``; weight 0 adds nothing."""

    def gather(self, processes: Processes, device: torch.device) -> None:
        """Add up the values of all processes; every one must call this."""

    def __contains__(self, name: str) -> bool: ...

    def __iter__(self) -> Iterator[str]: ...

    @property
    def weight(self) -> float:
        """The total weight added so far."""

    def sum(self, name: str) -> Tensor:
        """Return the weighted sum over the clients added."""

    def mean(self, name: str) -> Tensor:
        """Return what stands for the clients added, their weighted mean or another aggregate."""


class WeightedMean:
    """Accumulates weighted means over chunks of clients and over processes."""

    def __init__(self) -> None:
        """Start without clients."""
        self._sums: dict[str, Tensor] = {}
        self._names: list[str] | None = None
        self._weight: Tensor | float = 0.0

    def add(self, values: Mapping[str, Tensor], weights: Tensor) -> None:
        """Add the values of C clients.

        Args:
            values: ``[C, ...]`` each; a client of weight 0 adds nothing, even if its values are NaN.
            weights: ``[C]``, not negative.

        Raises:
            ValueError: If names or shapes differ from the values added before.
        """
        self._names = list(values) if self._names is None else self._names
        _require_same_names([self._names, list(values)])
        silent = weights == 0
        some_silent = bool(silent.any())
        for name, value in values.items():
            if some_silent:
                value = torch.where(silent.view(-1, *[1] * (value.dim() - 1)), torch.zeros_like(value), value)
            shape, total = value.shape[1:], self._sums.get(name)
            columns, factors = value.reshape(len(value), shape.numel()).T, weights.to(value)
            if total is None:
                self._sums[name] = columns.mv(factors).view(shape)
            elif total.shape != shape:
                raise of_different_shapes(name, (total.shape, shape))
            else:
                total.view(-1).addmv_(columns, factors)
        self._weight = self._weight + weights.sum()

    def gather(self, processes: Processes, device: torch.device) -> None:
        """Add up the sums of all processes, so that every process holds the total even if it added nothing.

        Args:
            processes: All processes that share the cohort; every one must call this.
            device: Device of the values.

        Raises:
            ValueError: If the clients of another process have values with other names or shapes.
        """
        if processes.count == 1:
            return
        some = bool(self._sums)
        mine = [(name, value.shape, value.dtype) for name, value in self._sums.items()]
        checksum = crc32(repr(sorted(mine, key=itemgetter(0))).encode()) % 2**20 if some else 0
        head = [float(self._weight), some, checksum, checksum**2]
        weight, *counts = processes.sum(torch.tensor(head, dtype=torch.float64, device=device))
        count, total, squares = (int(number) for number in counts)
        if count * squares != total**2:  # the variance of the checksums is not zero, so some fields differ
            require_same_fields(processes.collect(mine))
        if 0 < count < processes.count:
            for name, shape, dtype in next(each for each in processes.collect(mine) if each):
                self._sums.setdefault(name, torch.zeros(shape, dtype=dtype, device=device))
        self._weight = weight
        totals = {name: processes.sum(self._sums[name]) for name in sorted(self._sums)}  # in one order everywhere
        self._sums = {name: totals[name] for name in self._sums}

    def __contains__(self, name: str) -> bool:
        return name in self._sums

    def __iter__(self) -> Iterator[str]:
        return iter(self._sums)

    @property
    def weight(self) -> float:
        """The total weight added so far."""
        return float(self._weight)

    def sum(self, name: str) -> Tensor:
        """Return the weighted sum over the clients added."""
        return self._sums[name]

    def mean(self, name: str) -> Tensor:
        """Return the weighted mean over the clients added."""
        total = self._sums[name]
        return total / torch.as_tensor(self._weight, dtype=total.dtype, device=total.device)

    def means(self) -> dict[str, Tensor]:
        """Return all weighted means by name."""
        return {name: self.mean(name) for name in self._sums}


class CohortMean:
    """Averages the answers of one phase as they arrive, and leaves out clients with non-finite numbers.

    Attributes:
        accepted: Clients of this process whose answers count.
        left_out: Clients of this process whose answers do not count.
        floats: Number of values uploaded: by the clients of this process or, after :meth:`gather`, of all processes.
        answered: Number of clients that answered, counted in the same way.
        bits: Bits of what they uploaded, counted in the same way; 0 without a channel.
    """

    def __init__(
        self, roster: Roster, by_samples: bool, buffers: Tensor | None = None, updates: Sums | None = None
    ) -> None:
        """Start without answers.

        Args:
            roster: Gives the clients' weights.
            by_samples: Whether clients are weighted by their numbers of samples; otherwise all weigh the same.
            buffers: The server's averaged buffers, ``[b]``: what was infinite or NaN there may stay so. None if all
                must be finite.
            updates: Adds updates up; None for their weighted mean.
        """
        self.accepted: list[int] = []
        self.left_out: list[int] = []
        self.floats = 0
        self.answered = 0
        self.bits = 0.0
        self._roster = roster
        self._by_samples = by_samples
        finite = None if buffers is None or not buffers.numel() else buffers.isfinite()
        self._checked = None if finite is None or bool(finite.all()) else finite
        self._updates: Sums = WeightedMean() if updates is None else updates
        self._reports = WeightedMean()
        self._metrics = WeightedMean()
        self._tallies = WeightedMean()
        self._columns: dict[str, ClientColumn] = {}
        self._update_type: type[Any] | None = None
        self._each: dict[str, list[Tensor]] = {}

    def add(self, answer: Answer) -> None:
        """Add the answer of one chunk of clients."""
        sent = tensors_of(answer.update)
        checked = {**sent, **answer.reports}
        if answer.buffers.shape[1]:
            sent[BUFFERS] = answer.buffers
            checked[BUFFERS] = answer.buffers if self._checked is None else answer.buffers[:, self._checked]
        finite = _both(finite_clients(checked), answer.sound)
        weights = self._roster.weights(answer.client_ids, self._by_samples).to(answer.buffers)
        counted = torch.ones_like(weights) if finite is None else finite.to(weights)
        passes = [True] * len(answer.client_ids) if finite is None else finite.tolist()
        self._updates.add(sent, weights * counted)
        if answer.reports:
            self._reports.add(answer.reports, counted)
        self.bits += 0.0 if answer.bits is None else float(answer.bits.sum())
        self._metrics.add(answer.metrics, counted)
        if answer.tally:  # a client whose solver had nothing to do has no losses to average
            self._tallies.add(answer.tally, counted if answer.evaluated is None else counted * answer.evaluated)
        for name, values in {**answer.tally, **answer.metrics}.items():
            column = self._columns.setdefault(name, ClientColumn(name in answer.per_client))
            column.add(answer.client_ids, values, finite)
        if answer.update is not None:
            self._update_type = type(answer.update)
            for each in _sent_by_each(self._update_type):
                own = sent[each] if finite is None else sent[each][finite]
                self._each.setdefault(each, []).append(own)
        for client, counts in zip(answer.client_ids, passes, strict=True):
            (self.accepted if counts else self.left_out).append(client)
        self.floats += sum(value.numel() for value in sent.values())
        self.answered += len(answer.client_ids)

    def gather(self, processes: Processes, device: torch.device) -> None:
        """Add up the answers of all processes, so that every process holds the means of the whole cohort."""
        if processes.count > 1:
            counts = torch.tensor([self.floats, self.answered, self.answered == 0], device=device)
            self.floats, self.answered, without = (int(count) for count in processes.sum(counts))
            if without and self.answered:
                self._update_type = processes.agree(self._update_type)
        for mean in (self._updates, self._metrics, self._tallies):
            mean.gather(processes, device)
        self._everyone = self.accepted
        if self._update_type is not None and _sent_by_each(self._update_type) and processes.count > 1:
            mine = {name: torch.cat(values) for name, values in self._each.items()}
            parts = processes.collect((self.accepted, mine))
            self._everyone = [client for ids, _ in parts for client in ids]
            self._each = {
                name: [sent[name].to(device) for _, sent in parts if sent] for name in _sent_by_each(self._update_type)
            }

    @property
    def is_empty(self) -> bool:
        """True if no client sent finite numbers."""
        return self._updates.weight == 0

    @property
    def is_whole(self) -> bool:
        """True if every client that answered sent finite numbers."""
        return self._metrics.weight == self.answered

    def update(self) -> Any:
        """Return the averaged update as the server receives it; None if the clients send none."""
        if self._update_type is None:
            return None
        averaged: dict[str, Any] = {}
        for each in fields(self._update_type):
            over = each.metadata.get("over")
            if over == "none":
                values = torch.cat(self._each[each.name])
                client_ids = torch.tensor(self._everyone, dtype=torch.long, device=values.device)
                averaged[each.name] = PerClient(self._value(each.name), client_ids, values)
            else:
                averaged[each.name] = self._value(each.name, over == "all")
        return self._update_type(**averaged)

    def buffers(self) -> Tensor | None:
        """Return the mean change of the averaged buffers, ``[b]``; None if no buffers are averaged."""
        return self._value(BUFFERS) if BUFFERS in self._updates else None

    def metrics(self) -> dict[str, Tensor | float]:
        """Return the means of all logged values, and the numbers of clients accepted and left out."""
        counted = self._metrics.weight
        return {
            **self._tallies.means(),
            **self._metrics.means(),
            "clients": counted,
            "left_out": self.answered - counted,
        }

    def columns(self) -> dict[str, ClientColumn]:
        """Return what each client of this process reported, by name; clients that are left out among them."""
        return dict(self._columns)

    def _value(self, name: str, over_all: bool = False) -> Tensor:
        """Return what the server receives of a field: its mean over the cohort, or its sum divided by N."""
        if over_all:
            return self._updates.sum(name) / self._roster.total_weight(self._by_samples)
        return self._updates.mean(name)


Field = tuple[str, torch.Size, torch.dtype]
"""Name, shape without the clients, and dtype of what clients sent."""


def require_same_fields(of_processes: Sequence[Sequence[Field]]) -> None:
    """Refuse to add up what clients of several processes have sent in other fields; those without clients count not.

    Raises:
        ValueError: If a field is missing, or has another shape or dtype.
    """
    found = [each for each in of_processes if each]
    _require_same_names([[name for name, *_ in each] for each in found])
    for name in sorted({name for each in found for name, *_ in each}):
        forms = list(dict.fromkeys((shape, dtype) for each in found for other, shape, dtype in each if other == name))
        if len({shape for shape, _ in forms}) > 1:
            raise of_different_shapes(name, [shape for shape, _ in forms])
        if len(forms) > 1:
            raise InvalidValueError(
                f"Clients of one cohort sent '{name}' as {' and '.join(str(dtype) for _, dtype in forms)}."
            )


def of_different_shapes(name: str, shapes: Iterable[torch.Size]) -> InvalidValueError:
    """Return the error about a field that clients of one cohort sent in different shapes."""
    return InvalidValueError(
        f"Clients of one cohort sent '{name}' in different shapes, {' and '.join(str(list(each)) for each in shapes)}. "
        "If it holds something of every local step, set the data module's local_steps."
    )


def _require_same_names(all_names: Sequence[Sequence[str]]) -> None:
    """Refuse to average a value that only some clients sent, as the mean would count all others as zero.

    Raises:
        ValueError: If a name is missing for some clients.
    """
    if odd := sorted({name for names in all_names for name in names if any(name not in other for other in all_names)}):
        raise InvalidValueError(
            f"'{odd[0].removeprefix('train_')}' came from some clients of a cohort only. The dict of an objective must "
            "have the same keys in every evaluation, e.g. with the value 0, and so must an algorithm's Reply.log."
        )


def finite_clients(values: Mapping[str, Tensor]) -> Tensor | None:
    """Return which of C clients sent finite numbers only, ``[C]`` bool; None if all clients did."""
    total = torch.as_tensor(sum(value.sum() for value in values.values()))  # quick, and finite in most rounds
    if bool(total.isfinite()):
        return None
    sums = [value.reshape(len(value), -1).sum(1) for value in values.values()]
    finite = torch.stack([torch.isfinite(total) for total in sums]).all(0)
    return None if bool(finite.all()) else finite


def _both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Return the clients that pass both masks; None if all clients do."""
    return other if one is None else one if other is None else one & other


def _sent_by_each(update: type[Any]) -> list[str]:
    """Return the names of the fields that the server receives from each client separately."""
    return [each.name for each in fields(update) if each.metadata.get("over") == "none"]
