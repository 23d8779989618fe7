"""Extra Step Local SGD (Beznosikov, Samokhin, Gasnikov, 2020): local extragradient steps.

Client, K times:  w_half = w - lr * g_i(w; xi)
                  w     <- w - lr * g_i(w_half; xi'),  from w = z;  xi, xi' independent minibatches
Server:           z <- mean(w)

The method is for smooth problems. With a regularizer it takes subgradients and projects after every step, as Bai and
Bullins (FeDualEx, ICLR 2024, Section 6) run it for comparison: it keeps the constraint, but no structure.

Symbols: z_m -> w; gamma -> lr; H -> local_steps of the data.

Departures: projection and subgradients, as above; any cohort may take part, where the paper averages over all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedlightning.algorithms.base import Phase, Point, Reply
from fedlightning.algorithms.projected_gda import ProjectedGDA
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True, eq=False)
class ExtraStepLocalSGD(ProjectedGDA):
    """Runs local extragradient.

    Args:
        lr: Local step size eta > 0: one number, ``[min, max]`` or by name prefix.
    """

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return one exchange that draws two minibatches for each local step."""
        return (Phase(self.broadcast, self.client_update, self.server_update, draws=2),)

    def client_update(self, message: Point, state: Any, oracle: GradientOracle) -> Reply:
        """Take K local extragradient steps."""
        w, v = message.z.expand(oracle.num_clients, -1), oracle.personal
        for first, second in oracle.pairs():
            half = self.step(w, w, oracle.shared_gradient(w, v, first))
            g, v = oracle.step_personal(half, v, second, self.personal_lr)
            w = second.keep(self.step(w, half, g), w)
        return Reply(Point(w), personal=v, point=w)
