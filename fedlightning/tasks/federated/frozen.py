"""Parameters that the module's optimizer does not have: constants of a fit, as they are on one machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch.utilities import rank_zero_info
from torch import nn
from torch.optim import Optimizer

from fedlightning.federation.files.checkpoint_io import CheckpointError


class FrozenParameters:
    """Freezes what an optimizer does not step, for the time of a fit.

    The states of a fit have no place for these parameters, so their names are kept, and stored, with the states.

    Attributes:
        names: Names of the parameters that the last fit left out, in this program or in that of a checkpoint.
        stored: The names in the checkpoint that the coming fit goes on from; None if it begins, or the file has none.
    """

    def __init__(self) -> None:
        """Start with nothing frozen."""
        self.names: tuple[str, ...] = ()
        self.stored: Sequence[str] | None = None
        self._frozen: list[nn.Parameter] = []

    def freeze(self, module: nn.Module, optimizer: Optimizer) -> None:
        """Freeze the parameters of a module that are in no group of its optimizer, and say so.

        Args:
            module: Has the parameters.
            optimizer: Steps some of them.

        Raises:
            CheckpointError: If a fit goes on from a checkpoint whose optimizer had other parameters.
        """
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        without = {name: p for name, p in module.named_parameters() if p.requires_grad and id(p) not in stepped}
        self.names, stored, self.stored = tuple(without), self.stored, None
        if stored is not None and (odd := sorted({*stored} ^ {*without})):
            had, has = ("lacked", "has it") if odd[0] in stored else ("had", "lacks it")
            raise CheckpointError(
                f"The optimizer of the checkpoint {had} '{odd[0]}', that of {type(module).__name__} {has} now: states "
                "do not fit. Resume with the same parameters in configure_optimizers."
            )
        if not without:
            return
        first, *others = without
        more = f" and {len(others)} others" if others else ""
        rank_zero_info(
            f"{type(module).__name__}: '{first}'{more} are in no parameter group of "
            f"{type(optimizer).__name__}, so they stay as they are and do not travel."
        )
        self._frozen.extend(without.values())
        _require_grad(self._frozen, False)

    def give_back(self, trainer: Any) -> None:
        """Let the parameters require gradients again."""
        _require_grad(self._frozen, True)
        self._frozen = []


def _require_grad(parameters: Sequence[nn.Parameter], required: bool) -> None:
    for parameter in parameters:
        parameter.requires_grad_(required)
