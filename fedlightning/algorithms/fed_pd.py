"""FedPD (Zhang, Hong, Dhople, Yin, Liu, IEEE TSP 2021, Algorithm 1): federated primal-dual optimisation.

Client:  x <- approximately argmin f_i(x) + <lam_i, x - x0_i> + 1/(2 eta) * ||x - x0_i||^2,  started at x_i
         lam_i <- lam_i + (x - x0_i) / eta;  x_i <- x
         with probability 1 - p upload x + eta * lam_i;  otherwise x0_i <- x + eta * lam_i, and nothing is sent
Server:  z <- mean(upload), sent to all as their x0_i

One coin decides for all clients of a round; it is a pure function of the seed and the round. Without communication
neither upload nor download is counted. The duals are fed by own references x0_i, so skipping trades rounds for drift.
A client that missed a mean because it was not in the cohort goes on from its own reference until the next one; with
p = 0, the default, references are always the server's point.

Over partial cohorts the mean covers those who answered, while the duals of the others wait, as in FedMM: z can stand
still only where the duals of every cohort have the mean zero, so only where clients agree. Elsewhere z follows the
cohorts and ends about as far from the minimiser as clients differ. FedADMM's mean over all clients has no such error.

Proven for all clients in every round and smooth f_i, with subproblems solved to a fixed tolerance, which the gradient
then falls to at rate O(1/T) (tolerances must tend to 0 for a stationary point); p > 0 needs clients that differ little.
Nothing is proven with a max block, where this is the same iteration on operators; for p = 0 it is FIAELT with tau = 1,
beta = 1 / eta.

Symbols: x_0 -> z; x_i -> x of a client; x_{0,i} -> x0; lambda_i -> lam; eta -> eta; p -> p; epsilon -> stop.

Departures: cohorts may be partial; by default subproblems take the minibatch steps of the round and no rule of
accuracy.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.algorithms.base import Point, Reply, per_block
from fedlightning.algorithms.splitting import SplittingAlgorithm
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import constant
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require
from fedlightning.local.subproblem import Subproblem
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state between rounds.

    Attributes:
        z: The point, the last mean, ``[d]``.
        t: Round, from 0.
    """

    z: Tensor
    t: int


@dataclass(frozen=True)
class Message:
    """Holds the message from the server to the clients.

    Attributes:
        z: The point, ``[d]``; None if the round before made no mean.
        t: Round.
    """

    z: Tensor | None
    t: int


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        x: Its point x_i, ``[d]``.
        lam: Its dual, ``[d]``.
        x0: Its own reference for a round without the server's point, ``[d]``.
    """

    x: Tensor
    lam: Tensor
    x0: Tensor


@dataclass(frozen=True, eq=False)
class FedPD(SplittingAlgorithm):
    """Runs federated primal-dual optimisation.

    Where only some clients take part in a round it does not converge to the minimiser: choose ``FedADMM``.

    Args:
        eta: Inverse penalty > 0: one number, ``[min, max]`` or by name prefix.
        p: Probability 0 <= p < 1 that a round ends without communication.
        seed: Seed of the coin.
        solver: Solves the subproblems; null for the K minibatch steps the data module gives.
        stop: When a client is done before; null for never. The paper's rule is a fixed ``GradientTolerance``.
    """

    eta: PerBlock = per_block()
    p: float = constant("the coin of a round is looked at in the next one, too", 0.0)
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "eta", above=0.0)
        require(self, "seed")
        require(self, "p", at_least=0.0, below=1.0)

    @property
    def partial_cohorts(self) -> str | None:
        """Return advice, because the mean is exact with all clients only."""
        return "with some of the clients a round it does not converge to the minimiser; FedADMM does."

    def skips(self, t: int) -> bool:
        """Return whether round ``t`` ends without communication."""
        return random.Random(derive_seed(self.seed, t)).random() < self.p

    def init_server(self, z: Tensor) -> Server:
        """Start at the point, with no round done."""
        return Server(z, 0)

    def init_client(self, z: Tensor) -> Client:
        """Start at the point, without a dual."""
        return Client(z, torch.zeros_like(z), z)

    def broadcast(self, server: Server) -> Message:
        """Send the global point, if the previous round made a new one."""
        return Message(None if server.t and self.skips(server.t - 1) else server.z, server.t)

    def client_update(self, message: Message, state: Client, oracle: GradientOracle) -> Reply:
        """Solve the subproblem, take a dual step, and upload unless the round skips communication."""
        reference = state.x0 if message.z is None else message.z
        solution = self.solve(state.x, oracle, Subproblem(reference, 1 / self.eta, state.lam, turn=message.t))
        x = solution.w
        lam = state.lam + (x - reference) / self.eta
        x0 = x + self.eta * lam
        log = {**solution.log, "dual_norm": lam.norm(dim=1)}
        return Reply(
            None if self.skips(message.t) else Point(x0),
            Client(x, lam, x0),
            personal=solution.personal,
            point=x,
            log=log,
        )

    def server_update(self, server: Server, update: Point | None) -> Server:
        """Move to the mean of the uploads, if there are any."""
        return Server(server.z if update is None else update.z, server.t + 1)
