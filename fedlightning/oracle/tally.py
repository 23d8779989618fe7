"""Losses and logged scalars of clients, counted evaluation by evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedlightning.oracle.errors import ObjectiveError
from fedlightning.oracle.minibatch import Rows


@dataclass
class _Evaluations:
    """Holds what the objective returned in evaluations that follow each other, of the same clients.

    Attributes:
        rows: The clients; None for all.
        values: By name, ``[R]`` an evaluation.
        active: ``[R]`` bool an evaluation, for whom it counts; None for all.
    """

    rows: Rows | None
    values: dict[str, list[Tensor]] = field(default_factory=dict)
    active: list[Tensor | None] = field(default_factory=list)

    def mask(self) -> Tensor | None:
        """Return for whom the evaluations count, ``[evaluations, R]`` bool; None if all do for all."""
        some = next((each for each in self.active if each is not None), None)
        if some is None:
            return None
        return torch.stack([torch.ones_like(some) if each is None else each for each in self.active])


class Tally:
    """Averages what the objective returns over the evaluations of each of S clients.

    Values are kept as they come and summed once, at the end: an addition after every evaluation would cost more.
    """

    def __init__(self, like: Tensor) -> None:
        """Start with nothing counted.

        Args:
            like: ``[S]``, of the device and the dtype in which evaluations are counted.
        """
        self._like = like
        self._parts: list[_Evaluations] = []

    def add(self, values: Mapping[str, Tensor], active: Tensor | None = None, rows: Rows | None = None) -> None:
        """Count one evaluation.

        Args:
            values: Loss and scalars by name, ``[R]`` each.
            active: ``[R]`` bool, the clients for whom the evaluation counts; None for all that were evaluated.
            rows: The R clients that were evaluated; None for all.
        """
        if not self._parts or self._parts[-1].rows is not rows:
            self._parts.append(_Evaluations(rows))
        part = self._parts[-1]
        for name, value in values.items():
            part.values.setdefault(name, []).append(value)
        part.active.append(active)

    def means(self) -> dict[str, Tensor]:
        """Return each client's mean values by name, ``[S]`` each; NaN for clients without an evaluation.

        Raises:
            ObjectiveError: If the objective returned a value in some evaluations only.
        """
        self._require_all_names()
        count, sums = torch.zeros_like(self._like), dict[str, Tensor]()
        for part in self._parts:
            mask = part.mask()
            place = slice(None) if part.rows is None else part.rows.index
            count[place] += len(part.active) if mask is None else mask.sum(0, dtype=count.dtype)
            for name, values in part.values.items():
                found = torch.stack(values)
                found = found if found.is_floating_point() else found.to(torch.get_default_dtype())
                added = (found if mask is None else torch.where(mask, found, 0.0)).sum(0)
                sums.setdefault(name, added.new_zeros(len(count)))[place] += added
        return {name: total / count for name, total in sums.items()}

    def counted(self) -> Tensor:
        """Return which clients have an evaluation that counts, ``[S]`` bool."""
        counted = torch.zeros_like(self._like, dtype=torch.bool)
        for part in self._parts:
            mask = part.mask()
            counted[slice(None) if part.rows is None else part.rows.index] |= True if mask is None else mask.any(0)
        return counted

    def _require_all_names(self) -> None:
        evaluations = sum(len(part.active) for part in self._parts)
        for name in dict.fromkeys(name for part in self._parts for name in part.values):
            found = sum(len(part.values.get(name, ())) for part in self._parts)
            if found != evaluations:
                raise ObjectiveError(
                    f"objective returned '{name}' in {found} of {evaluations} evaluations of a round. Return the "
                    "same keys every time, e.g. with the value 0."
                )
