"""FedMiD (Yuan, Zaheer, Reddi, ICML 2021): federated mirror descent for composite problems, in operator form.

Client, K times:  w <- step(w, g_i(w), lr),  from w = z
Server:           z <- from_dual(to_dual(z) + lr_server * mean(to_dual(w) - to_dual(z)), lr_server * lr * K)

with step(w, g, t) = from_dual(to_dual(w) - t * g, t). For the Euclidean mirror map to_dual is the identity and
from_dual(., t) the proximal operator of t * ψ: a proximal gradient step on the client, a proximal step on the server.
The mean of sparse points is not sparse, and the server's threshold does not grow: the "curse of primal averaging".
(The paper adds the primal mean change to the dual image of z; the change of dual images is the same thing for the
Euclidean map and stays in the dual space for others.)

Symbols: w -> z; w_k -> w; eta_c -> lr; eta_s -> lr_server; psi -> regularizer of the task; h -> the mirror map of the
regularizer; K -> local_steps of the data.

Departures: the server adds changes of dual images, see above. Written for operators, where nothing is proven with a max
block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Point, Reply, count, increment, per_block
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require_step_size
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Change:
    """Holds the upload of a client.

    Attributes:
        dual: Change of the dual image of the client's point, ``[S, d]``.
        steps: Local steps it took, ``[S]``.
    """

    dual: Tensor = increment()
    steps: Tensor = count()


@dataclass(frozen=True, eq=False)
class FedMiD(Algorithm):
    """Runs federated mirror descent.

    Args:
        lr: Client step size eta_c > 0: one number, ``[min, max]`` or by name prefix.
        lr_server: Server step size eta_s > 0: the same.
    """

    regularized = True

    lr: PerBlock = per_block()
    lr_server: PerBlock = per_block(1.0)

    def __post_init__(self) -> None:
        require_step_size(self, "lr", "lr_server")

    def init_server(self, z: Tensor) -> Point:
        """Start at the point, moved into the constraint."""
        return Point(self.regularizer.start(z))

    def broadcast(self, server: Point) -> Point:
        """Send the global point."""
        return server

    def client_update(self, message: Point, state: Any, oracle: GradientOracle) -> Reply:
        """Take K proximal gradient steps."""
        w, v = message.z.expand(oracle.num_clients, -1), oracle.personal
        for batch in oracle.batches():
            g, v = oracle.step_personal(w, v, batch, self.personal_lr)
            w = batch.keep(self.step(w, g), w)
        return self.reply(message, w, v, oracle.steps)

    def server_update(self, server: Point, update: Change) -> Point:
        """Take a proximal step along the mean change."""
        dual = self.regularizer.to_dual(server.z) + self.lr_server * update.dual
        return Point(self.regularizer.from_dual(dual, self.lr_server * self.lr * update.steps))

    def step(self, w: Tensor, g: Tensor) -> Tensor:
        """Take one mirror step of size lr from ``w [S, d]`` against ``g [S, d]``."""
        return self.regularizer.from_dual(self.regularizer.to_dual(w) - self.lr * g, self.lr)

    def reply(self, message: Point, w: Tensor, v: Tensor | None, steps: Tensor) -> Reply:
        """Return the change of the dual image."""
        change = self.regularizer.to_dual(w) - self.regularizer.to_dual(message.z)
        return Reply(Change(change, steps), personal=v, point=w)
