"""The problem that a client of a splitting method solves in every round."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Subproblem:
    """Describes a client's problem, to minimise f_i(w) + <dual, w> + weight / 2 * ||w - center||^2.

    With a max block, its saddle point is sought. Either solution is a zero of :meth:`operator`.

    Attributes:
        center: Point to which the quadratic term pulls, ``[d]`` or ``[S, d]``.
        weight: Weight of the quadratic term: a number, ``[d]`` or ``[S, 1]``.
        dual: Linear term, ``[S, d]``; None for none.
        smoothness: Lipschitz constant L_i of f_i's operator, a number, ``[d]`` or ``[S, 1]``; None if it is not known.
        turn: Number of earlier rounds, or of the client's earlier problems, ``[S]``, with which tolerances may tighten;
            None where the algorithm counts neither.
    """

    center: Tensor
    weight: float | Tensor
    dual: Tensor | None = None
    smoothness: float | Tensor | None = None
    turn: int | Tensor | None = None

    def operator(self, w: Tensor, g: Tensor) -> Tensor:
        """Return the subproblem's operator at ``w [S, d]``, given f_i's operator ``g [S, d]`` at the same point."""
        total = g + self.weight * (w - self.center)
        return total if self.dual is None else total + self.dual

    def conditioning(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return bounds of the subproblem's operator: the strong monotonicity and the Lipschitz constant.

        If L_i is unknown, the choice weight = 5 L_i of FIAELT's Corollary 2 is assumed.

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
