"""PGDA: local projected gradient descent ascent with primal averaging.

Shafahi et al. (AAAI 2020), Algorithm 3, on every client: the baseline of Bai and Bullins (FeDualEx, ICLR 2024, Sec. 6).

Client, K times:  w <- project(w - lr * (g_i(w) + s)),  s a subgradient of psi at w,  from w = z
Server:           z <- mean(w)

A subgradient step never lands on zero, so an l1 norm yields small values instead of sparse ones. Without a regulariser
it is FedAvg (FedAvgGDA). The projection keeps every local point, and with it the mean, in the constraint.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Point, Reply
from fedlightning.oracle.cohort import CohortOracle
from fedlightning.ranges import require
from fedlightning.space import PerBlock


@dataclass(frozen=True, eq=False)
class ProjectedGDA(Algorithm):
    """Local projected subgradient descent ascent.

    Args:
        lr: Local step size eta > 0: one number, ``[min, max]`` or by name prefix.
    """

    regularized = True

    lr: PerBlock

    def __post_init__(self) -> None:
        require(self, "lr", above=0.0)

    def init_server(self, z: Tensor) -> Point:
        """The start, projected into the constraint."""
        return Point(self.psi.project(z))

    def down(self, server: Point) -> Point:
        """The point."""
        return server

    def client(self, down: Point, rows: Any, oracle: CohortOracle) -> Reply:
        """K projected steps."""
        w = down.z.expand(oracle.clients, -1)
        for batch in oracle.batches():
            g = oracle.follow(w, batch, self.personal_lr)
            w = batch.keep(self.step(w, w, g), w)
        return Reply(Point(w), point=w)

    def server(self, server: Point, up: Point) -> Point:
        """The mean of the local points."""
        return up

    def step(self, w: Tensor, at: Tensor, g: Tensor) -> Tensor:
        """From ``w [S, d]`` against the operator ``g`` of the point ``at``, and a subgradient there."""
        if self.psi:
            g = g + self.psi.subgradient(at)
        return self.psi.project(w - self.lr * g)


PGDA = ProjectedGDA
