"""FedSGDA (Peng et al., ICLR 2020; Shen et al., FedMM, 2022, Algorithm 1), also called Parallel SGDA and FedSGD.

Client:  g_i(z) on one minibatch
Server:  z <- prox_{lr ψ}(z - lr * mean(g_i(z)))

One step a round: no drift, and as many rounds as centralised training has steps. The proximal operator is ours: with
full batches and a regularizer this is the proximal gradient method on the mean of the objectives.

Symbols: omega, psi -> z, its min and its max block; eta_1, eta_2 -> lr.

Departures: the proximal operator, which the papers do not have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Phase, Point, Reply, increment, per_block
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require_step_size
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Gradient:
    """Holds the upload of a client.

    Attributes:
        g: Operator at the received point, ``[S, d]``; averaged ``[d]``.
    """

    g: Tensor = increment()


@dataclass(frozen=True, eq=False)
class FedSGDA(Algorithm):
    """Runs distributed stochastic gradient descent ascent, or FedSGD when nothing is maximised.

    Of the minibatches a data module gives, only the first is used.

    Args:
        lr: Step size eta > 0 of the server's step: one number, ``[min, max]`` or by name prefix.
    """

    regularized = True

    lr: PerBlock = per_block()

    def __post_init__(self) -> None:
        require_step_size(self, "lr")

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return one exchange with one minibatch for each client."""
        return (Phase(self.broadcast, self.client_update, self.server_update, steps=1),)

    def init_server(self, z: Tensor) -> Point:
        """Start with the point alone."""
        return Point(self.regularizer.project(z))

    def broadcast(self, server: Point) -> Point:
        """Send the global point."""
        return server

    def client_update(self, message: Point, state: Any, oracle: GradientOracle) -> Reply:
        """Return the operator at the received point, after one step of the personal block."""
        w = message.z.expand(oracle.num_clients, -1)
        g, v = oracle.step_personal(w, oracle.personal, next(oracle.batches()), self.personal_lr)
        return Reply(Gradient(g), personal=v, point=w)

    def server_update(self, server: Point, update: Gradient) -> Point:
        """Take one step against the mean operator."""
        return Point(self.regularizer.prox(server.z - self.lr * update.g, self.lr))


FedSGD = FedSGDA
ParallelSGDA = FedSGDA
