"""SCAFFOLD with momentum as NIID-Bench's code has it: the correction stays outside of the momentum.

Client, K times:  m <- momentum * m + g_i(w) + weight_decay * w
                  w <- w - lr * (m - c_i + c)
The rest is SCAFFOLD's, so that c_i estimates a mean of m, and not of g_i, of which m is up to 1 / (1 - momentum) times:
by how much depends on K.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.algorithms import SCAFFOLD
from fedlightning.algorithms.base import Reply
from fedlightning.algorithms.scaffold import Client, Server, Upload
from fedlightning.local import SGD
from fedlightning.local.descent import descend
from fedlightning.local.optimizers import OptimizerSteps
from fedlightning.oracle.gradient import GradientOracle


class Corrected(OptimizerSteps):
    """Steps of an optimizer, each with a correction beside it."""

    def __init__(self, optimizer: SGD, lr: float | Tensor, correction: Tensor) -> None:
        super().__init__(optimizer, lr)
        self.moved = lr * correction

    def __call__(self, w: Tensor, direction: Tensor, active: Tensor | None) -> Tensor:
        """Step from ``w [S, d]``, the clients that are ``active [S]``."""
        stepped = super().__call__(w, direction, active) - self.moved
        return stepped if active is None else torch.where(active[:, None], stepped, w)


@dataclass(frozen=True, eq=False)
class MomentumOutside(SCAFFOLD):
    """SCAFFOLD whose local steps have a momentum that corrections do not enter.

    Args:
        momentum: Weight of the past, from 0 to below 1.
        weight_decay: Weight of the penalty ``|w|^2 / 2`` in local steps.
    """

    momentum: float = 0.9
    weight_decay: float = 1e-5

    def client_update(self, message: Server, state: Client, oracle: GradientOracle) -> Reply:
        """Take K steps, and average them on the way into the new control variate."""
        z, c, c_i, lr = message.z, message.c, state.c, self.lr
        sgd = SGD(momentum=self.momentum, weight_decay=self.weight_decay)
        w, v = descend(z, oracle, lr, optimizer=Corrected(sgd, lr, c - c_i))
        c_new = c_i - c + (z - w) / (oracle.steps[:, None] * lr)
        return Reply(Upload(dz=w - z, dc=c_new - c_i), Client(c_new), personal=v, point=w)
