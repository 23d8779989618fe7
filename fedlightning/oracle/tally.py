"""Losses and logged scalars of clients, counted evaluation by evaluation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedlightning.oracle.objective import ObjectiveError


class Tally:
    """Averages what the objective returns over the evaluations of each of S clients.

    Values are kept as they come and summed once, at the end: an addition after every evaluation would cost more.
    """

    def __init__(self, like: Tensor) -> None:
        """Start with nothing counted.

        Args:
            like: ``[S]``, of the device and the dtype in which evaluations are counted.
        """
        self._values: dict[str, list[Tensor]] = {}
        self._active: list[Tensor] = []
        self._everyone = torch.ones_like(like)

    def add(self, values: Mapping[str, Tensor], active: Tensor | None = None) -> None:
        """Count one evaluation.

        Args:
            values: Loss and scalars by name, ``[S]`` each.
            active: ``[S]`` bool, the clients for whom the evaluation counts; None for all.
        """
        for name, value in values.items():
            self._values.setdefault(name, []).append(value)
        self._active.append(self._everyone if active is None else active.to(self._everyone))

    def means(self) -> dict[str, Tensor]:
        """Return each client's mean values by name, ``[S]`` each; NaN for clients without an evaluation.

        Raises:
            ObjectiveError: If the objective returned a value in some evaluations only.
        """
        if not self._active:
            return {}
        active = torch.stack(self._active)
        count = active.sum(0)
        for name, values in self._values.items():
            if len(values) != len(active):
                raise ObjectiveError(
                    f"objective returned '{name}' in {len(values)} of {len(active)} evaluations of a round. Return the "
                    "same keys every time, e.g. with the value 0."
                )
        return {
            name: torch.where(active > 0, torch.stack(values), 0.0).sum(0) / count
            for name, values in self._values.items()
        }

    def counted(self) -> Tensor:
        """Return which clients have an evaluation that counts, ``[S]`` bool."""
        if self._active and self._active[0] is self._everyone:
            return self._everyone > 0
        return torch.stack([torch.zeros_like(self._everyone), *self._active]).sum(0) > 0
