"""FedSplit (Pathak, Wainwright, NeurIPS 2020, Algorithm 1): Peaceman-Rachford splitting.

Client:  x_i <- approximately prox_{s f_i}(2 * z - z_i),  started at z
         z_i <- z_i + 2 * (x_i - z);  upload the change
Server:  z <- mean of z_i over all N clients, by increments

Exact subproblems have the minimiser of the mean as their only fixed point, whatever the clients hold. With subproblems
started at the received point, where they end in the limit, few steps do. The mean takes absent clients with their last
z_i: over partial cohorts this is randomised Peaceman-Rachford splitting.

Proven for all clients, smooth and strongly convex f_i: linear convergence, up to the error of the subproblems. In
operator form it holds for strongly monotone Lipschitz operators, so for strongly convex, strongly concave saddle point
problems too; without strong convexity it may cycle.

Symbols: x_bar -> z; z_j -> z of a client; s -> s; prox_update_j -> solver and stop.

Departures: cohorts may be partial, where the paper asks all clients.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlightning.algorithms.base import Reply, over_all_clients, per_block
from fedlightning.algorithms.splitting import SplittingAlgorithm
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require
from fedlightning.local.subproblem import Subproblem
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state, which is also the message to the clients.

    Attributes:
        z: The point, the mean of z_i over all N clients, ``[d]``.
        t: Round, from 0.
    """

    z: Tensor
    t: int


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        z: Its splitting variable z_i, ``[d]``.
    """

    z: Tensor


@dataclass(frozen=True)
class Change:
    """Holds the upload of a client.

    Attributes:
        dz: Change of z_i, ``[S, d]``; the server receives the sum over the cohort, divided by N.
    """

    dz: Tensor = over_all_clients()


@dataclass(frozen=True, eq=False)
class FedSplit(SplittingAlgorithm):
    """Runs federated Peaceman-Rachford splitting.

    Args:
        s: Proximal step size > 0: one number, ``[min, max]`` or by name prefix; about 1 / sqrt(L * strong convexity).
        solver: Solves the subproblems; null for the K minibatch steps the data module gives.
        stop: When a client is done before; null for never.
    """

    s: PerBlock = per_block(constant="each z_i has the scale of the round that computed it")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "s", above=0.0)

    @property
    def accumulates(self) -> bool:
        """Return True, because the mean over all clients grows by increments."""
        return True

    def init_server(self, z: Tensor) -> Server:
        """Start with all clients at the point."""
        return Server(z, 0)

    def init_client(self, z: Tensor) -> Client:
        """Start at the point."""
        return Client(z)

    def broadcast(self, server: Server) -> Server:
        """Send the global point and the round."""
        return server

    def client_update(self, message: Server, state: Client, oracle: GradientOracle) -> Reply:
        """Take the reflected proximal step."""
        z = message.z
        solution = self.solve(z, oracle, Subproblem(2 * z - state.z, 1 / self.s, turn=message.t))
        dz = 2 * (solution.w - z)
        return Reply(Change(dz), Client(state.z + dz), personal=solution.personal, point=solution.w, log=solution.log)

    def server_update(self, server: Server, update: Change) -> Server:
        """Update the exact mean over all clients."""
        return Server(server.z + update.dz, server.t + 1)
