"""Limits of the norm of what one client sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt

import torch
from torch import Tensor

from fedlightning.channel.base import Exchange, Fields, Sent, Transform
from fedlightning.core.validation import require


@dataclass(frozen=True)
class Clip(Transform):
    """Shortens a client's update to a largest norm.

    The norm is that of the difference from what the server knows, over all fields of the update together; averaged
    buffers are among them.

    Args:
        norm: Largest Euclidean norm C > 0.
        each: Whether every field is clipped by itself, each to this norm.
    """

    norm: float
    each: bool = False

    def __post_init__(self) -> None:
        require(self, "norm", above=0.0)

    def apply(self, sent: Sent, memory: Fields, exchange: Exchange, purpose: int) -> tuple[Sent, Fields]:
        """Return the update times ``min(1, C / norm)``, client by client."""
        norms = {name: torch.linalg.vector_norm(value, dim=1) for name, value in sent.values.items()}
        if not self.each and norms:
            dtype = max((each.dtype for each in norms.values()), key=lambda dtype: torch.finfo(dtype).bits)
            joint = torch.linalg.vector_norm(torch.stack([each.to(dtype) for each in norms.values()]), dim=0)
            norms = dict.fromkeys(norms, joint)
        values = {
            name: value * _factor(norms[name], self.norm)[:, None].to(value) for name, value in sent.values.items()
        }
        return replace(sent, values=values), {}

    def bound(self, before: float | None, names: Sequence[str], exchange: Exchange) -> float | None:
        """Return C, or C times the root of the number of fields if each is clipped; less if it was less before."""
        limit = self.norm * sqrt(len(names)) if self.each else self.norm
        return limit if before is None else min(before, limit)


def _factor(norms: Tensor, limit: float) -> Tensor:
    """Return what each client's update is multiplied by, ``[S]``; NaN stays NaN."""
    return limit / norms.clamp(min=limit)
