"""FedProx (Li et al., MLSys 2020) and its minimax form FedProxGDA (Shen et al., FedMM, 2022, Algorithm 2).

Client, K times:  w <- w - lr * (g_i(w) + mu * (w - z)),  from w = z
Server:           z <- mean(w)

The proximal term pulls both blocks towards the received point, so in operator form it has the same sign on both:
f_i(x, y) + mu/2 |x - x_z|^2 - mu/2 |y - y_z|^2.

Symbols: w^t -> z; w -> w; mu -> mu; eta_1, eta_2 of FedMM -> lr; E -> local_epochs of the data; K -> size of Uniform.

Departures: clients take a fixed number of steps, where the paper asks for an inexact minimiser of accuracy gamma; they
are drawn uniformly, where the paper draws them by their share of the samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedlightning.algorithms.base import Point, Reply, per_block
from fedlightning.algorithms.fed_avg import FedAvg
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True, eq=False)
class FedProx(FedAvg):
    """Runs federated averaging with a proximal term, or FedProxGDA when the task has a max block.

    Args:
        lr: Local step size eta > 0: one number, ``[min, max]`` or by name prefix.
        mu: Proximal weight mu >= 0: one number, ``[min, max]`` or by name prefix; 0 gives FedAvg.
        local_optimizer: Elementwise torch optimizer for the local steps in place of plain gradient steps.
    """

    mu: PerBlock = per_block(1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "mu", at_least=0.0)

    def client_update(self, message: Point, state: Any, oracle: GradientOracle) -> Reply:
        """Take K local steps, each pulled back towards the received point."""
        z, mu = message.z, self.mu
        w, v = self.local_steps(z, oracle, lambda w, g: g + mu * (w - z))
        return Reply(Point(w), personal=v, point=w)


FedProxGDA = FedProx
