"""What single clients report of a round, beside the means over the cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedlightning.federation.processes import Processes

_SHOWN = 6


class ClientColumn:
    """Gathers one value a client as answers arrive.

    Attributes:
        client_ids: Ids of the S clients so far.
        is_distribution: Whether the algorithm logs the value client by client, so that loggers show how it spreads.
    """

    def __init__(self, is_distribution: bool = False) -> None:
        """Start without clients."""
        self.client_ids: list[int] = []
        self.is_distribution = is_distribution
        self._values: list[Tensor] = []
        self._counted: list[Tensor] = []

    def __repr__(self) -> str:
        kind = "distribution of " if self.is_distribution else ""
        values = ", ".join(
            f"{client}: {float(value):.4g}"
            for client, value in zip(self.client_ids[:_SHOWN], self.values, strict=False)
        )
        more = f", ... {len(self.client_ids)} clients" if len(self.client_ids) > _SHOWN else ""
        return f"ClientColumn({kind}{{{values}{more}}})"

    def add(self, client_ids: Sequence[int], values: Tensor, counted: Tensor | None = None) -> None:
        """Add the values of C clients.

        Args:
            client_ids: The clients.
            values: ``[C]``.
            counted: Which of them count in means over the cohort, ``[C]`` bool; None if all do.
        """
        self.client_ids.extend(client_ids)
        self._values.append(values)
        self._counted.append(torch.ones_like(values, dtype=torch.bool) if counted is None else counted)

    @property
    def values(self) -> Tensor:
        """Return the value of each client, ``[S]``; NaN for a client that has none."""
        return torch.cat(self._values) if self._values else torch.empty(0)

    @property
    def counted(self) -> Tensor:
        """Return which clients count in means over the cohort, ``[S]`` bool; others were left out."""
        return torch.cat(self._counted) if self._counted else torch.empty(0, dtype=torch.bool)


def of_all_processes(columns: Mapping[str, ClientColumn], processes: Processes) -> dict[str, ClientColumn]:
    """Return the columns with the clients of all processes, the same in every process.

    Args:
        columns: What the clients of this process reported, by name.
        processes: All processes that share the cohort; every one must call this.
    """
    if processes.count == 1:
        return dict(columns)
    mine = {
        name: (each.client_ids, each.values.cpu(), each.counted.cpu(), each.is_distribution)
        for name, each in columns.items()
    }
    joined: dict[str, ClientColumn] = {}
    for theirs in processes.collect(mine):
        for name, (client_ids, values, counted, is_distribution) in theirs.items():
            joined.setdefault(name, ClientColumn(is_distribution)).add(client_ids, values, counted)
    return joined
