"""Means over the clients of a cohort: of what they upload, and of what is logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from fedlightning.processes import OneProcess, Processes


class WeightedMean:
    """Sums weighted values over chunks of clients and over processes."""

    def __init__(self) -> None:
        """Begin with no client."""
        self._sums: dict[str, Tensor] = {}
        self._names: list[str] | None = None
        self._weight: Tensor | float = 0.0

    def add(self, values: Mapping[str, Tensor], weights: Tensor) -> None:
        """Add C clients.

        Args:
            values: ``[C, ...]`` each; a client of weight 0 adds nothing, whatever its values.
            weights: ``[C]``, not negative.

        Raises:
            ValueError: If the values have other names or shapes than those of the clients before.
        """
        self._names = list(values) if self._names is None else self._names
        _require_same_names([self._names, list(values)])
        silent = weights == 0
        some_silent = bool(silent.any())
        for name, value in values.items():
            if some_silent:
                shape = (-1, *[1] * (value.dim() - 1))
                value = torch.where(silent.view(shape), torch.zeros_like(value), value)
            term = torch.tensordot(weights.to(value.dtype), value, dims=1)
            if name in self._sums and self._sums[name].shape != term.shape:
                raise ValueError(
                    f"Clients of one cohort sent '{name}' in different shapes, {list(self._sums[name].shape)} and "
                    f"{list(term.shape)}. If it holds something of every local step, set the data module's local_steps."
                )
            self._sums[name] = self._sums[name] + term if name in self._sums else term
        self._weight = self._weight + weights.sum()

    def gather(self, processes: Processes, device: torch.device) -> None:
        """Add up the processes' sums; every process then holds the whole, also one that added nothing.

        Args:
            processes: Those that add up.
            device: Where the values are.

        Raises:
            ValueError: If the values of another process's clients have other names.
        """
        if isinstance(processes, OneProcess):
            return
        some = bool(self._sums)
        names = crc32("\0".join(self._sums).encode()) % 2**20 if some else 0
        head = [float(self._weight), 1.0, some, names, names**2]
        weight, *counts = processes.sum(torch.tensor(head, dtype=torch.float64, device=device))
        everyone, count, total, squares = (int(number) for number in counts)
        if count * squares != total**2:  # their variance is not zero
            _require_same_names([each for each in processes.each(list(self._sums)) if each])
        if 0 < count < everyone:
            known = processes.each([(name, value.shape, value.dtype) for name, value in self._sums.items()])
            for name, shape, dtype in next(each for each in known if each):
                self._sums.setdefault(name, torch.zeros(shape, dtype=dtype, device=device))
        self._weight = weight
        self._sums = {name: processes.sum(total) for name, total in self._sums.items()}

    @property
    def weight(self) -> float:
        """Total weight so far."""
        return float(self._weight)

    def mean(self, name: str) -> Tensor:
        """Weighted mean over the clients added."""
        total = self._sums[name]
        return total / torch.as_tensor(self._weight, dtype=total.dtype, device=total.device)

    def means(self) -> dict[str, Tensor]:
        """All weighted means."""
        return {name: self.mean(name) for name in self._sums}

    def message(self, up: Any, total_weight: float) -> Any:
        """An upload as the server receives it.

        Args:
            up: Any chunk's upload, a dataclass; None if nothing is sent.
            total_weight: Weight of all N clients, for fields that are averaged over all of them.
        """
        if up is None:
            return None
        averaged = {
            f.name: self._sums[f.name] / total_weight if f.metadata.get("over") == "all" else self.mean(f.name)
            for f in fields(up)
        }
        return type(up)(**averaged)


def _require_same_names(all_names: Sequence[Sequence[str]]) -> None:
    """Refuse to average what only some clients sent: it would be divided by the weight of all.

    Raises:
        ValueError: If a name is missing in some.
    """
    if odd := sorted({name for names in all_names for name in names if any(name not in other for other in all_names)}):
        raise ValueError(
            f"'{odd[0].removeprefix('train_')}' came from some clients of a cohort only. The dict of an objective must "
            "have the same keys in every evaluation, e.g. with the value 0, and so must an algorithm's Reply.log."
        )


def finite_clients(values: Mapping[str, Tensor]) -> Tensor | None:
    """Which of C clients sent finite numbers only, ``[C]`` bool; None if all did."""
    sums = [value.reshape(len(value), -1).sum(1) for value in values.values()]
    finite = torch.stack([torch.isfinite(total) for total in sums]).all(0) if sums else None
    return None if finite is None or bool(finite.all()) else finite
