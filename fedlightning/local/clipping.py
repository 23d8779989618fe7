"""Limits of clients' gradients, by the norm or entry by entry."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.core.validation import require


@dataclass(frozen=True)
class ByValue:
    """Limits every entry of a client's gradient by itself, as ``torch.nn.utils.clip_grad_value_`` does.

    Args:
        limit: Largest absolute value > 0 of an entry.
    """

    limit: float

    def __post_init__(self) -> None:
        require(self, "limit", above=0.0)


Clip = float | ByValue
"""The largest norm of one client's gradient, or the largest absolute value of its entries."""


def require_clip(owner: object, name: str) -> None:
    """Check an attribute that limits gradients; None is no limit.

    Args:
        owner: Object with the attribute.
        name: Name of the attribute.

    Raises:
        TypeError: If it is neither a number nor a :class:`ByValue`.
        ValueError: If a norm is not above 0.
    """
    if not isinstance(getattr(owner, name), ByValue):
        require(owner, name, above=0.0, optional=True)


def clipped(clip: Clip | None, *blocks: Tensor) -> tuple[Tensor, ...]:
    """Limit every client's gradient.

    Args:
        clip: The limit; None for none.
        blocks: Parts of the same clients' gradients, ``[S, d]``, ``[S, p]``, ...

    Returns:
        The blocks. A gradient that is not finite stays so where norms are limited.
    """
    if clip is None:
        return blocks
    if isinstance(clip, ByValue):
        return tuple(block.clamp(-clip.limit, clip.limit) for block in blocks)
    return clip_rows(clip, *blocks)


def clip_rows(clip: float, *blocks: Tensor) -> tuple[Tensor, ...]:
    """Scale every client's gradient to a norm of at most ``clip``, as ``torch.nn.utils.clip_grad_norm_`` does for one.

    Args:
        clip: Largest norm of a client's gradient, over all blocks together.
        blocks: Parts of the same clients' gradients, ``[S, d]``, ``[S, p]``, ...

    Returns:
        The blocks, scaled client by client. A gradient that is not finite stays so.
    """
    norm = torch.stack([block.square().sum(dim=1) for block in blocks]).sum(dim=0).sqrt()
    scale = (clip / (norm + 1e-6)).clamp(max=1.0)  # the 1e-6 is torch's
    return tuple(block * scale[:, None] for block in blocks)
