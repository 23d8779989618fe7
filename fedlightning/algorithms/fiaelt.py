"""FIAELT: federated inexact ADMM with efficient local termination (under review, Algorithm 1).

Client:  x <- approximately argmin f_i(x) + <z_i, x - y> + beta/2 * ||x - y||^2,  started at x_i
         z_i <- z_i + tau * beta * (x - y);  x_i <- x;  upload both changes
Server:  xbar, zbar follow the uploads, the means of x_i and z_i over all N clients
         y <- prox_{ψ / beta}(xbar + zbar / beta)

"Approximately" means that the squared distance to the subproblem's solution falls to r times that of x_i. Any r < 1
does, however many rounds there are, so the number of inner steps does not grow with them; r comes in through the
sufficient test of :class:`fedlightning.local.RelativeDecrease`. The solver is SVRG as in Corollary 2, with beta = 5 L,
r = 0.005, tau = 1/2, 200 steps of size 1 / (40 L) an epoch and 10 epochs at most; the range r <= 0.01 of Proposition 5
is too wide.

The paper minimises sum_i f_i + g, this package mean_i f_i + ψ. The former with g = N * ψ is N times the latter, and
its server step prox_{g / (N beta)} is prox_{ψ / beta}: the same iterates, and N appears nowhere.

At a fixed point z_i = -g_i(y). Proven for all clients in every round, smooth f_i, convex ψ and beta >= 5 L: the
sequence converges to stationary points at rate O(1/T), linearly where the KL exponent allows.

Symbols: x_i, z_i -> x, z of a client; y -> y; beta -> beta; tau -> tau; r -> r; L -> smoothness; g -> N times the
task's regularizer; m, eta -> steps and lr of the solver SVRG.

Departures: clients may stay away (the means cover all N with their last values); the operator form with a max block,
for which nothing is proven beyond monotone operators solved exactly; and without a given beta every client takes its
own, beta_i = 5 L_i, with L_i from a power iteration when it first takes part. Then the server weighs each by its
beta_i: y = prox_{ψ / mean(beta_i)}(mean(beta_i x_i + z_i) / mean(beta_i)), which is exact ADMM in that metric; clients
that have not yet come have no weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Reply, over_all_clients, per_block
from fedlightning.algorithms.splitting import SplittingAlgorithm
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import PerRound
from fedlightning.core.validation import require
from fedlightning.local.smoothness import estimate_smoothness
from fedlightning.local.solvers import SVRG, LocalSolver
from fedlightning.local.stopping import RelativeDecrease, StoppingRule
from fedlightning.local.subproblem import Subproblem
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state between rounds.

    Attributes:
        y: The point, ``[d]``.
        bx: Mean of beta_i * x_i over all N clients, ``[d]``.
        z: Mean of z_i over all N clients, ``[d]``.
        beta: Mean of beta_i, a scalar; the number or ``[d]`` given.
    """

    y: Tensor
    bx: Tensor
    z: Tensor
    beta: Any


@dataclass(frozen=True)
class Broadcast:
    """Holds the message from the server to the clients.

    Attributes:
        y: The point, ``[d]``.
    """

    y: Tensor


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        x: Its point x_i, ``[d]``.
        z: Its dual z_i, ``[d]``.
    """

    x: Tensor
    z: Tensor


@dataclass(frozen=True)
class OwnPenaltyClient(Client):
    """Holds the state of a client whose penalty is estimated.

    Attributes:
        beta: Its penalty, a scalar, ``[S]`` for a cohort; 0 before it first takes part.
    """

    beta: Tensor


@dataclass(frozen=True)
class Change:
    """Holds the upload of a client, which the server receives as a sum over the cohort, divided by N.

    Attributes:
        dbx: Change of beta_i * x_i, ``[S, d]``.
        dz: Change of z_i, ``[S, d]``.
    """

    dbx: Tensor = over_all_clients()
    dz: Tensor = over_all_clients()


@dataclass(frozen=True)
class OwnPenaltyChange(Change):
    """Holds the upload of a client whose penalty is estimated.

    Attributes:
        dbeta: Change of beta_i, ``[S]``.
    """

    dbeta: Tensor = over_all_clients()


@dataclass(frozen=True, eq=False)
class FIAELT(SplittingAlgorithm):
    """Runs federated inexact ADMM with efficient local termination.

    Args:
        beta: Penalty > L = max L_i: one number, ``[min, max]`` or by name prefix; 5 L in the theory. Null: each client
            takes 5 L_i by its own estimate.
        tau: Dual step size > 0; [1/2, 1) in the theory.
        r: Accuracy 0 < r < 1 of the subproblems.
        smoothness: L, if it is known better than as beta / 5; it sets the test of r and the solver's step size. Where
            L_i is larger the test promises too much: ``solved`` then counts clients that met it, not the criterion.
        solver: Solves the subproblems; null for SVRG as in Corollary 2.
        stop: When a client is done before; null for the criterion of r.
    """

    regularized = True
    state_depends_on = ("beta",)

    beta: PerBlock | None = per_block(None)
    tau: PerRound = 0.5
    r: PerRound = 0.005
    smoothness: PerRound | None = None
    solver: LocalSolver = field(default_factory=SVRG, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "beta", "smoothness", above=0.0, optional=True)
        require(self, "tau", above=0.0)
        require(self, "r", above=0.0, below=1.0)

    @property
    def own_rule(self) -> StoppingRule:
        """Return the rule of relative decrease."""
        return RelativeDecrease(self.r)

    @property
    def accumulates(self) -> bool:
        """Return True, because the means over all clients grow by increments."""
        return True

    def init_server(self, z: Tensor) -> Server:
        """Start with all clients at the point, without duals."""
        if self.beta is None:
            return Server(self.regularizer.project(z), torch.zeros_like(z), torch.zeros_like(z), z.new_zeros(()))
        return Server(self.regularizer.project(z), self.beta * z, torch.zeros_like(z), self.beta)

    def init_client(self, z: Tensor) -> Client:
        """Start at the point, without a dual."""
        if self.beta is None:
            return OwnPenaltyClient(z, torch.zeros_like(z), z.new_zeros(()))
        return Client(z, torch.zeros_like(z))

    def broadcast(self, server: Server) -> Broadcast:
        """Send the global point."""
        return Broadcast(server.y)

    def client_update(self, message: Broadcast, state: Client, oracle: GradientOracle) -> Reply:
        """Solve the subproblem, then take a dual step."""
        y = message.y
        before, beta = self._penalties(state, oracle)
        smoothness = beta / 5 if self.smoothness is None else self.smoothness
        solution = self.solve(state.x, oracle, Subproblem(y, beta, state.z, smoothness))
        x = solution.w
        dz = self.tau * beta * (x - y)
        z, dbx = state.z + dz, beta * x - before * state.x
        log = {**solution.log, "dual_norm": z.norm(dim=1)}
        if isinstance(state, OwnPenaltyClient):
            own, known = beta.squeeze(1), state.beta
            return Reply(
                OwnPenaltyChange(dbx, dz, own - known),
                OwnPenaltyClient(x, z, own),
                personal=solution.personal,
                point=x,
                log=log,
            )
        return Reply(Change(dbx, dz), Client(x, z), personal=solution.personal, point=x, log=log)

    def server_update(self, server: Server, update: Change) -> Server:
        """Update the means, then take the proximal step from them."""
        bx, z = server.bx + update.dbx, server.z + update.dz
        beta = server.beta + update.dbeta if isinstance(update, OwnPenaltyChange) else server.beta
        return Server(self.regularizer.prox((bx + z) / beta, 1 / beta), bx, z, beta)

    def carried_over(self, server: Server, before: FIAELT, clients: Client | None) -> Server | None:
        """Return the state with the mean of beta * x_i for the new beta, or None unless both runs set beta."""
        if self.beta is None or before.beta is None:
            return None
        bx = server.bx * (self.beta / before.beta) if clients is None else self.beta * clients.x
        return Server(server.y, bx, server.z, self.beta)

    def point(self, server: Server) -> Tensor:
        """Return the server's point y."""
        return server.y

    def _penalties(self, state: Client, oracle: GradientOracle) -> tuple[Any, Any]:
        """Return beta_i as the server knows it and beta_i from now on: numbers, ``[d]`` or ``[S, 1]``."""
        if not isinstance(state, OwnPenaltyClient):
            return self.beta, self.beta
        known = state.beta[:, None]
        if bool((known > 0).all()):
            return known, known
        batch = next(oracle.batches()) if self.solver.data == "minibatches" else None
        smoothness = estimate_smoothness(lambda w: oracle.at_reference(w, batch), state.x)
        return known, torch.where(known > 0, known, 5 * smoothness)
