"""The precision that Lightning runs training steps in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import LightningModule

from fedlightning.oracle import Autocast


@dataclass(frozen=True)
class RoundPrecision:
    """Says in which precision clients evaluate the objective, and how the server's step is scaled.

    Attributes:
        autocast: Mixed precision of the objective.
        scaler: Lightning's gradient scaler; None where gradients are not scaled.
    """

    autocast: Autocast
    scaler: Any

    @classmethod
    def of(cls, task: LightningModule) -> RoundPrecision:
        """Read the precision of the training step that Lightning runs now."""
        plugin: Any = task.trainer.precision_plugin
        scaler = getattr(plugin, "scaler", None)
        device = task.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        return cls(Autocast(device, dtype, scale=1.0 if scaler is None else scaler.get_scale()), scaler)

    @property
    def undoes_overflow(self) -> bool:
        """Return whether a round with infinite gradients is undone, because the next one has a smaller scale."""
        return self.scaler is not None and self.autocast.scale > 1
