"""FedAvg (McMahan et al., AISTATS 2017) and its minimax form FedAvgGDA (Shen et al., FedMM, 2022, Algorithm 2).

Client, K times:  w <- w - lr * g_i(w),  from w = z
Server:           z <- mean(w)

With a max block this is local gradient descent ascent. With K > 1 and heterogeneous clients its fixed point is not the
saddle point: each client drifts towards its own.

On a task with personal parameters both blocks take each step at the same iterate: that is FedSim (Pillutla et al., ICML
2022, Algorithm 3), under whose name it goes as well.

Symbols: w_t -> z; w^k -> w; eta -> lr; C -> fraction of Uniform; E -> local_epochs of the data; B -> batch_size of the
data; n_k / n -> weighting of the task.

Departures: clients count alike unless the task says ``weighting="samples"``, as the paper does. A client whose samples
do not fill its last minibatch meets some of them again in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedlightning.algorithms.base import LocalGradientAlgorithm, Point, Reply
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True, eq=False)
class FedAvg(LocalGradientAlgorithm):
    """Runs federated averaging, or FedAvgGDA when the task has a max block.

    Args:
        lr: Local step size eta > 0: one number, ``[min, max]`` or by name prefix.
        local_optimizer: Elementwise torch optimizer for the local steps in place of plain gradient steps.
    """

    def init_server(self, z: Tensor) -> Point:
        """Start with the point alone."""
        return Point(z)

    def broadcast(self, server: Point) -> Point:
        """Send the global point."""
        return server

    def client_update(self, message: Point, state: Any, oracle: GradientOracle) -> Reply:
        """Take K local steps from the received point."""
        w, v = self.local_steps(message.z, oracle)
        return Reply(Point(w), personal=v, point=w)

    def server_update(self, server: Point, update: Point) -> Point:
        """Move to the mean of the local points."""
        return update


FedAvgGDA = FedAvg
FedSim = FedAvg
