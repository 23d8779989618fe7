"""Parameters that the module's optimizer does not have: constants of a fit, as they are on one machine."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from torch.optim import Optimizer


class FrozenParameters:
    """Freezes what an optimizer does not step, for the time of a fit."""

    def __init__(self) -> None:
        """Start with nothing frozen."""
        self._frozen: list[nn.Parameter] = []

    def freeze(self, module: nn.Module, optimizer: Optimizer) -> None:
        """Freeze the parameters of a module that are in no group of its optimizer, and say so.

        Args:
            module: Has the parameters.
            optimizer: Steps some of them.
        """
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        without = {name: p for name, p in module.named_parameters() if p.requires_grad and id(p) not in stepped}
        if not without:
            return
        first, *others = without
        more = f" and {len(others)} others" if others else ""
        rank_zero_info(
            f"{type(module).__name__}: '{first}'{more} are in no parameter group of "
            f"{type(optimizer).__name__}, so they stay as they are and do not travel."
        )
        for parameter in without.values():
            parameter.requires_grad_(False)
            self._frozen.append(parameter)

    def give_back(self, trainer: Any) -> None:
        """Let the parameters require gradients again."""
        for parameter in self._frozen:
            parameter.requires_grad_(True)
        self._frozen = []
