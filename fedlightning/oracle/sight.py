"""How autograd sees the operations that run at present."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Sight(NamedTuple):
    """Says how autograd sees an operation.

    Attributes:
        enabled: Whether it takes note of operations.
        packs: Whether hooks pack what it saves; None if this version of PyTorch does not say so.
    """

    enabled: bool
    packs: bool | None

    @classmethod
    def now(cls) -> Sight:
        """Return how autograd sees operations at present."""
        return cls(torch.is_grad_enabled(), None if _PACKING is None else _PACKING(True) is not None)


_PACKING = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
