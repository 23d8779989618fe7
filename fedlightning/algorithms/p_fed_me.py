"""pFedMe (T. Dinh, Tran, Nguyen, NeurIPS 2020, Algorithm 1): personal models by Moreau envelopes.

Client, on every minibatch:   theta <- theta - lr_own * (g_i(theta) + lam * (theta - w)),   inner_steps times
                              w     <- w - lr * lam * (w - theta)
Server:                       z     <- (1 - beta) * z + beta * mean(w)

w starts at the received z; theta, the near minimiser of f_i + lam/2 |theta - w|^2, starts there too and is carried from
minibatch to minibatch of the round (the paper leaves its start open; its authors' code does so). The last theta is the
client's personal model. A task's personal block takes one plain step a minibatch, at the first theta it meets.

Symbols: w -> z; w_i -> w; theta_i -> theta; lambda -> lam; eta -> lr; beta -> beta; R -> local_steps of the data; delta
-> inner_steps and lr_own.

Departures: the envelope's minimiser takes a fixed number of gradient steps, where the paper asks for accuracy delta.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Point, Reply, per_block
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import PerRound
from fedlightning.core.validation import require, require_step_size
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        theta: The personal model, ``[d]`` for one client, ``[S, d]`` for a cohort.
    """

    theta: Tensor


@dataclass(frozen=True, eq=False)
class pFedMe(Algorithm):
    """Averages the clients' Moreau envelopes, whose proximal points are the personal models.

    Args:
        lr: Local step size eta > 0 of w: one number, ``[min, max]`` or by name prefix; ``lr * lam`` stays below 1.
        lam: Weight lambda > 0 of the envelope: one number, ``[min, max]`` or by name prefix.
        lr_own: Step size > 0 of theta; null for ``lr``.
        inner_steps: Steps of theta on each minibatch.
        beta: Share beta > 0 of the clients' mean in the server's new point.
    """

    lr: PerBlock = per_block()
    lam: PerBlock = per_block(15.0)
    lr_own: PerBlock | None = per_block(None)
    inner_steps: int = 5
    beta: PerRound = 1.0

    def __post_init__(self) -> None:
        require_step_size(self, "lr")
        require_step_size(self, "lr_own", optional=True)
        require(self, "lam", "beta", above=0.0)
        require(self, "inner_steps", at_least=1)

    def init_server(self, z: Tensor) -> Point:
        """Start with the point alone."""
        return Point(z)

    def init_client(self, z: Tensor) -> Client:
        """Start with the personal model at the point."""
        return Client(z)

    def broadcast(self, server: Point) -> Point:
        """Send the global point."""
        return server

    def client_update(self, message: Point, state: Client, oracle: GradientOracle) -> Reply:
        """Approximate proximal points of the local point, and move the local point towards them."""
        lam, lr = self.lam, self.lr if self.lr_own is None else self.lr_own
        w = theta = message.z.expand(oracle.num_clients, -1)
        v = oracle.personal
        for batch in oracle.batches():
            for step in range(self.inner_steps):
                g, v = oracle.step_personal(theta, v, batch, 0.0 if step else self.personal_lr)
                theta = batch.keep(theta - lr * (g + lam * (theta - w)), theta)
            w = batch.keep(w - self.lr * lam * (w - theta), w)
        log = {"own_distance": (theta - message.z).norm(dim=1)}
        return Reply(Point(w), Client(theta), personal=v, point=w, log=log)

    def server_update(self, server: Point, update: Point) -> Point:
        """Step by the share beta towards the mean of the local points."""
        return Point((1 - self.beta) * server.z + self.beta * update.z)

    def personal_model(self, state: Client) -> Tensor:
        """Return the personal models."""
        return state.theta
