"""FedMiP (Bai, Bullins, FeDualEx, ICLR 2024, Algorithm 2): federated mirror prox for composite saddle point problems.

Client, K times:  w_half = step(w, g_i(w; xi), lr)
                  w     <- step(w, g_i(w_half; xi'), lr),  from w = z;  xi, xi' independent minibatches
Server:           as FedMiD

FedMiD with an extra step. It finds saddle points, but averages primal points, so sparsity and low rank suffer as
FedMiD's do. Algorithm 2 writes the mirror map sometimes as h and leaves out the mean over clients; both are meant.

Symbols: z -> z; eta^c -> lr; eta^s -> lr_server; psi -> regularizer and max_regularizer of the task; K -> local_steps
of the data.

Departures: none beyond the readings above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fedlightning.algorithms.base import Phase, Point, Reply
from fedlightning.algorithms.fed_mid import FedMiD
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True, eq=False)
class FedMiP(FedMiD):
    """Runs federated mirror prox.

    Args:
        lr: Client step size eta_c > 0: one number, ``[min, max]`` or by name prefix.
        lr_server: Server step size eta_s > 0: the same.
    """

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return one exchange that draws two minibatches for each local step."""
        return (Phase(self.broadcast, self.client_update, self.server_update, draws=2),)

    def client_update(self, message: Point, state: Any, oracle: GradientOracle) -> Reply:
        """Take K mirror prox steps."""
        w, v = message.z.expand(oracle.num_clients, -1), oracle.personal
        for first, second in oracle.pairs():
            half = self.step(w, oracle.shared_gradient(w, v, first))
            g, v = oracle.step_personal(half, v, second, self.personal_lr)
            w = second.keep(self.step(w, g), w)
        return self.reply(message, w, v, oracle.steps / 2)
