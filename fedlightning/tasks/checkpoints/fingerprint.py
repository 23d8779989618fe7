"""A few numbers of a model, by which one sees whether it is still the one that a checkpoint was written with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ROUNDING = 1e-9


def fingerprint(module: nn.Module) -> Tensor:
    """Return the sum, the l1 norm and the squared l2 norm of every parameter, ``[parameters, 3]`` float64."""
    rows = [each.detach().double() for each in module.parameters()]
    found = [torch.stack([each.sum(), each.abs().sum(), each.square().sum()]) for each in rows]
    return torch.stack(found).cpu() if found else torch.empty(0, 3, dtype=torch.float64)


def is_of(module: nn.Module, known: object) -> bool:
    """Return whether a module has the parameters of a fingerprint, but for the rounding of sums."""
    found = fingerprint(module)
    if not isinstance(known, Tensor) or known.shape != found.shape:
        return False
    size = found[:, 1:2].clamp(min=torch.finfo(torch.float64).tiny)
    scale = torch.cat([size, size, found[:, 2:].clamp(min=torch.finfo(torch.float64).tiny)], dim=1)
    return torch.allclose(known / scale, found / scale, rtol=0.0, atol=_ROUNDING, equal_nan=True)
