"""FedADMM (Zhou, Li, "Federated learning via inexact ADMM", 2022, Algorithm 2).

Client:  x <- approximately argmin f_i(x) + <pi_i, x - z> + sigma/2 * ||x - z||^2,  started at x_i, until the squared
              gradient is at most eps_i
         pi_i <- pi_i + sigma * (x - z);  x_i <- x;  eps_i <- nu * eps_i
Server:  z <- prox_{ψ / sigma}(mean of x_i + pi_i / sigma over all N clients, absent ones with their last)

A few linearised steps do for a subproblem: x <- z - (g_i(x) + pi_i) / sigma is gradient descent with step 1 / sigma.
The paper's sigma_i are one sigma here, and may differ by block. The proximal step is that of FedADMM by Wang, Marella
and Anderson (CDC 2022); without ψ it is the identity. The papers minimise sum_i f_i + g, which with g = N * ψ are N
times mean_i f_i + ψ: the same iterates.

Proven for cohorts that cover all clients every so often, smooth f_i and sigma large against L_i: all limit points are
stationary, at rate O(1/T); as tolerances tighten, so must the steps of a client grow, like log(1 / eps_i). Nothing is
proven with a max block.

Symbols: x -> z; x_i -> x of a client; pi_i -> pi; sigma_i -> sigma; epsilon_i -> eps; nu_i -> nu.

Departures: one penalty for all clients, the proximal step of the second paper, and the operator form; see above.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedlightning.algorithms.base import Reply, over_all_clients, per_block
from fedlightning.algorithms.splitting import SplittingAlgorithm
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import PerRound, constant
from fedlightning.core.validation import require
from fedlightning.local.solvers import GradientDescent, LocalSolver
from fedlightning.local.stopping import DecreasingTolerance, StoppingRule
from fedlightning.local.subproblem import Subproblem
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state between rounds.

    Attributes:
        z: The point, ``[d]``.
        mean: Mean of x_i + pi_i / sigma over all N clients, ``[d]``.
    """

    z: Tensor
    mean: Tensor


@dataclass(frozen=True)
class Broadcast:
    """Holds the message from the server to the clients.

    Attributes:
        z: The point, ``[d]``.
    """

    z: Tensor


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        x: Its point x_i, ``[d]``.
        pi: Its dual pi_i, ``[d]``.
        turn: How often it has taken part, a scalar: its tolerance is eps * nu^turn.
    """

    x: Tensor
    pi: Tensor
    turn: Tensor


@dataclass(frozen=True)
class Change:
    """Holds the upload of a client.

    Attributes:
        dmean: Change of x_i + pi_i / sigma, ``[S, d]``; the server receives the sum over the cohort, divided by N.
    """

    dmean: Tensor = over_all_clients()


@dataclass(frozen=True, eq=False)
class FedADMM(SplittingAlgorithm):
    """Runs federated inexact ADMM with tightening tolerances.

    Args:
        sigma: Penalty > 0: one number, ``[min, max]`` or by name prefix.
        eps: First tolerance > 0 of the squared gradient of a subproblem.
        nu: Factor 0 < nu < 1 by which a client's tolerance tightens whenever it takes part.
        solver: Solves the subproblems; null for at most 5 steps of gradient descent.
        stop: When a client is done before; null for the tolerance of eps and nu. A minibatch says little about it:
            with ``LocalSteps`` on minibatches take ``FixedSteps``.
    """

    regularized = True
    state_depends_on = ("sigma",)

    sigma: PerBlock = per_block(constant="the server's mean of x_i + pi_i / sigma is in its units")
    eps: PerRound = 1.0
    nu: float = constant("it is the base of a schedule itself", 0.95)
    solver: LocalSolver = field(default_factory=lambda: GradientDescent(max_steps=5), kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "sigma", above=0.0)
        require(self, "eps", above=0.0)
        require(self, "nu", above=0.0, below=1.0)

    @property
    def own_rule(self) -> StoppingRule:
        """Return the rule with the tightening tolerance."""
        return DecreasingTolerance(self.eps, self.nu)

    @property
    def accumulates(self) -> bool:
        """Return True, because the mean over all clients grows by increments."""
        return True

    def init_server(self, z: Tensor) -> Server:
        """Start with all clients at the point, without duals."""
        return Server(self.regularizer.project(z), z)

    def init_client(self, z: Tensor) -> Client:
        """Start at the point, without a dual."""
        return Client(z, torch.zeros_like(z), z.new_zeros(()))

    def broadcast(self, server: Server) -> Broadcast:
        """Send the global point."""
        return Broadcast(server.z)

    def client_update(self, message: Broadcast, state: Client, oracle: GradientOracle) -> Reply:
        """Solve the subproblem, then take a dual step."""
        z = message.z
        solution = self.solve(state.x, oracle, Subproblem(z, self.sigma, state.pi, turn=state.turn))
        x = solution.w
        pi = state.pi + self.sigma * (x - z)
        change = (x + pi / self.sigma) - (state.x + state.pi / self.sigma)
        log = {**solution.log, "dual_norm": pi.norm(dim=1)}
        return Reply(Change(change), Client(x, pi, state.turn + 1), personal=solution.personal, point=x, log=log)

    def server_update(self, server: Server, update: Change) -> Server:
        """Update the exact mean over all clients, then take the proximal step from it."""
        mean = server.mean + update.dmean
        return Server(self.regularizer.prox(mean, 1 / self.sigma), mean)

    def carried_over(self, server: Server, before: FedADMM, clients: Client | None) -> Server | None:
        """Return the state with the mean of x_i + pi_i / sigma for the new sigma and an unchanged point."""
        return None if clients is None else Server(server.z, clients.x + clients.pi / self.sigma)
