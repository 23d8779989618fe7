"""The problem a client of a splitting method solves in every round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Subproblem:
    """f_i(w) + <dual, w> + weight / 2 * ||w - center||^2, or its saddle point: zero of the operator below.

    Attributes:
        center: What the quadratic term pulls to, ``[d]`` or ``[S, d]``.
        weight: Weight of the quadratic term: a number, ``[d]`` or ``[S, 1]``.
        dual: Linear term, ``[S, d]``; None for none.
        smoothness: Lipschitz constant L_i of f_i's operator, a number, ``[d]`` or ``[S, 1]``; None if it is not known.
        turn: How often the client has been given such a problem before, a number or ``[S]``; tolerances may tighten.
    """

    center: Tensor
    weight: float | Tensor
    dual: Tensor | None = None
    smoothness: float | Tensor | None = None
    turn: int | Tensor = 0

    def operator(self, w: Tensor, g: Tensor) -> Tensor:
        """The subproblem's operator at ``w [S, d]``, given f_i's operator ``g [S, d]`` there."""
        total = g + self.weight * (w - self.center)
        return total if self.dual is None else total + self.dual

    def conditioning(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the subproblem's operator: how strongly monotone and how steep it is.

        With an unknown L_i the choice weight = 5 L_i of FIAELT's Corollary 2 is taken for granted.

        Args:
            like: Gives dtype and device.

        Returns:
            weight - L_i and weight + L_i, each a scalar or ``[S]``.
        """
        weight = torch.as_tensor(self.weight, dtype=like.dtype, device=like.device)
        known = weight / 5 if self.smoothness is None else self.smoothness
        smoothness = torch.as_tensor(known, dtype=like.dtype, device=like.device)
        least, most = (weight - smoothness, weight + smoothness)
        return (least, most) if least.dim() == 0 else (least.amin(-1), most.amax(-1))
