"""FedADMM (Gong, Li, Freris, ICDE 2022, Algorithm 1): ADMM for cohorts with increments on the server.

Client:  x <- approximately argmin f_i(x) + <lam_i, x - z> + rho/2 * ||x - z||^2,  started at x_i
         lam_i <- lam_i + rho * (x - z);  x_i <- x
         upload the change of x_i + lam_i / rho
Server:  z <- z + lr_server * mean over the cohort(upload)

With lr_server = S/N the point is the mean of x_i + lam_i / rho over all N clients, as in consensus ADMM. The authors
find 1 faster on cohorts, but only S/N is exact: with c = lr_server * N / S, a fixed point z has
mean(lam_i) = rho * (1 - c) / c * (z - start), and the mean of the duals must vanish. The number of local steps may vary
between clients.

Proven for random cohorts and smooth f_i with rho large against L_i: rate O(1/T) to a neighbourhood set by the tolerance
of the subproblems. Nothing is proven with a max block.

Symbols: theta -> z; w_i -> x of a client; y_i -> lam; rho -> rho; eta -> lr_server; epsilon_i -> stop.

Departures: by default subproblems take the minibatch steps of the round and no rule of accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.algorithms.base import Reply, increment, per_block
from fedlightning.algorithms.splitting import SplittingAlgorithm
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require
from fedlightning.local.subproblem import Subproblem
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state, which is also the message to the clients.

    Attributes:
        z: The point, ``[d]``.
        t: Round, from 0.
    """

    z: Tensor
    t: int


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        x: Its point x_i, ``[d]``.
        lam: Its dual, ``[d]``.
    """

    x: Tensor
    lam: Tensor


@dataclass(frozen=True)
class Change:
    """Holds the upload of a client.

    Attributes:
        dz: Change of x_i + lam_i / rho, ``[S, d]``.
    """

    dz: Tensor = increment()


@dataclass(frozen=True, eq=False)
class FedADMMGong(SplittingAlgorithm):
    """Runs the federated ADMM of Gong et al.

    Args:
        rho: Penalty > 0: one number, ``[min, max]`` or by name prefix.
        lr_server: Server step size > 0: the same.
        solver: Solves the subproblems; null for the K minibatch steps the data module gives.
        stop: When a client is done before; null for never. The paper's rule is a fixed ``GradientTolerance``.
    """

    primal = True
    state_depends_on = ("rho", "lr_server")  # z has grown by steps that nobody remembers: it cannot be rebuilt

    rho: PerBlock = per_block(constant="the point is a sum of steps in its units")
    lr_server: PerBlock = per_block(1.0, constant="the point is a sum of steps of this size")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "rho", "lr_server", above=0.0)

    @property
    def partial_cohorts(self) -> str | None:
        """Return advice if the server takes whole steps, which are exact with all clients only."""
        if not (isinstance(self.lr_server, int | float) and self.lr_server == 1):
            return None
        return "with some of the clients a round it may diverge; lr_server: S/N, their share of all clients, is exact."

    @property
    def accumulates(self) -> bool:
        """Return True, because the point itself is a sum of increments."""
        return True

    def init_server(self, z: Tensor) -> Server:
        """Start at the point, with no round done."""
        return Server(z, 0)

    def init_client(self, z: Tensor) -> Client:
        """Start at the point, without a dual."""
        return Client(z, torch.zeros_like(z))

    def broadcast(self, server: Server) -> Server:
        """Send the global point and the round."""
        return server

    def client_update(self, message: Server, state: Client, oracle: GradientOracle) -> Reply:
        """Solve the subproblem, then take a dual step."""
        z = message.z
        solution = self.solve(state.x, oracle, Subproblem(z, self.rho, state.lam, turn=message.t))
        x = solution.w
        lam = state.lam + self.rho * (x - z)
        change = (x + lam / self.rho) - (state.x + state.lam / self.rho)
        log = {**solution.log, "dual_norm": lam.norm(dim=1)}
        return Reply(Change(change), Client(x, lam), personal=solution.personal, point=x, log=log)

    def server_update(self, server: Server, update: Change) -> Server:
        """Step along the mean increment."""
        return Server(server.z + self.lr_server * update.dz, server.t + 1)
