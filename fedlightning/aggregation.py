"""Means over the clients of a cohort: of what they upload, and of what is logged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedlightning.processes import Processes


class WeightedMean:
    """Sums weighted values over chunks of clients and over processes."""

    def __init__(self) -> None:
        """Begin with no client."""
        self._sums: dict[str, Tensor] = {}
        self._weight: Tensor | float = 0.0

    def add(self, values: Mapping[str, Tensor], weights: Tensor) -> None:
        """Add C clients.

        Args:
            values: ``[C, ...]`` each; a client of weight 0 adds nothing, whatever its values.
            weights: ``[C]``, not negative.
        """
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

    def gather(self, processes: Processes) -> None:
        """Add up the processes' sums; every process then holds the whole."""
        assert isinstance(self._weight, Tensor)
        self._weight = processes.sum(self._weight)
        self._sums = {name: processes.sum(total) for name, total in self._sums.items()}

    @property
    def weight(self) -> float:
        """Total weight so far."""
        return float(self._weight)

    def mean(self, name: str) -> Tensor:
        """Weighted mean over the clients added."""
        return self._sums[name] / self._weight

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
            f.name: self._sums[f.name] / (total_weight if f.metadata.get("over") == "all" else self._weight)
            for f in fields(up)
        }
        return type(up)(**averaged)


def finite_clients(values: Mapping[str, Tensor]) -> Tensor | None:
    """Which of C clients sent finite numbers only, ``[C]`` bool; None if all did."""
    sums = [value.reshape(len(value), -1).sum(1) for value in values.values()]
    finite = torch.stack([torch.isfinite(total) for total in sums]).all(0) if sums else None
    return None if finite is None or bool(finite.all()) else finite
