"""PGDA: local projected gradient descent ascent with primal averaging.

Shafahi et al. (AAAI 2020), Algorithm 3, on every client: the baseline of Bai and Bullins (FeDualEx, ICLR 2024, Sec. 6).

Client, K times:  w <- project(w - lr * (g_i(w) + s)),  s a subgradient of ψ at w,  from w = z
Server:           z <- mean(w)

A subgradient step never lands on zero, so an l1 norm yields small values instead of sparse ones. Without a regularizer
it is FedAvg (FedAvgGDA). The projection keeps every local point, and with it the mean, in the constraint.

Symbols: w, delta -> z, its min and its max block; eta -> lr; the set of delta -> max_regularizer of the task.

Departures: the method is federated as Bai and Bullins run it, by local steps on every client, with subgradients of a
norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Point, Reply, per_block
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require_step_size
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True, eq=False)
class ProjectedGDA(Algorithm):
    """Runs local projected subgradient descent ascent.

    Args:
        lr: Local step size eta > 0: one number, ``[min, max]`` or by name prefix.
    """

    regularized = True

    lr: PerBlock = per_block()

    def __post_init__(self) -> None:
        require_step_size(self, "lr")

    def init_server(self, z: Tensor) -> Point:
        """Start at the point, projected into the constraint."""
        return Point(self.regularizer.project(z))

    def broadcast(self, server: Point) -> Point:
        """Send the global point."""
        return server

    def client_update(self, message: Point, state: Any, oracle: GradientOracle) -> Reply:
        """Take K projected steps."""
        w, v = message.z.expand(oracle.num_clients, -1), oracle.personal
        for batch in oracle.batches():
            g, v = oracle.step_personal(w, v, batch, self.personal_lr)
            w = batch.keep(self.step(w, w, g), w)
        return Reply(Point(w), personal=v, point=w)

    def server_update(self, server: Point, update: Point) -> Point:
        """Move to the mean of the local points."""
        return update

    def step(self, w: Tensor, at: Tensor, g: Tensor) -> Tensor:
        """Step from ``w [S, d]`` against ``g`` plus a subgradient of ψ at the point ``at``, then project."""
        if self.regularizer:
            g = g + self.regularizer.subgradient(at)
        return self.regularizer.project(w - self.lr * g)


PGDA = ProjectedGDA
