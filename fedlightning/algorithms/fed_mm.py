"""FedMM (Shen et al., 2022, Algorithm 3): an augmented Lagrangian for the consensus of the clients' saddle points.

Y. Shen, J. Du, H. Zhao, B. Zhang, Z. Ji, M. Gao: FedMM: Saddle point optimization for federated adversarial domain
adaptation.

Client, K times:  w <- w - lr * (g_i(w) + mu * (w - z) + lam_i),  from w = z
                  lam_i <- lam_i + mu * (w - z)
                  upload  w + eta3^t / mu * lam_i
Server:           z <- mean(upload)

With ``mean_over="all"`` the mean covers all N clients, absent ones with what they sent last:
                  upload  u_i' - u_i,  u_i' = w + eta3^t / mu * lam_i;  u_i <- u_i'
Server:           z <- z + sum over the cohort (u_i' - u_i) / N,  the mean of all u_i

lam_i collects the duals of both blocks (lambda and beta in the paper, in operator sign), mu is (mu_1, mu_2) and t the
round. All blocks are taken at the same iterate. Two misprints of the paper are resolved: eq. (9) means 1/mu_1, and line
19 averages ψ^{t+}, as (16) does; averaging ψ^{t+1} converges to a wrong point.

At a fixed point w = z and lam_i = -g_i(z), so the mean of the duals is minus the operator of f and vanishes: for
eta3 = 1 the method reaches the exact saddle for any K. eta3 < 1 lets this correction fade; with a quickly fading one it
ends away from the saddle. With duals frozen at 0 it is FedProxGDA.

That holds where all clients take part, as in the paper. Over partial cohorts the paper's mean covers those who
answered, while the duals of the others wait: z can stand still only where the duals of every cohort have the mean zero,
so only where clients agree. Elsewhere z follows the cohorts and ends about as far from the saddle as clients differ.
``mean_over="all"`` is ours and mends it. u_i starts at the start and z is the mean of all u_i after every round, so a
fixed point again has w_i = z and u_i = z + lam_i / mu for all i; their mean is z, hence mean(lam_i) = 0 with
lam_i = -g_i(z): the saddle, whoever takes part, as in FedADMM (Zhou, Li) and FedAPM. Every client keeps u_i beside
lam_i; u_i is what was sent, so mu and eta3 may change on the way. With all clients in every round both are the same.

Symbols: omega_0, psi_0 -> z, its min and its max block; omega_i, psi_i -> w; lambda_i, beta_i -> lam; mu_1, mu_2 -> mu;
eta_1, eta_2 -> lr; eta_3 -> eta3; M_i -> local_steps of the data.

Departures: the two misprints above, and the choice ``mean_over="all"``, which is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedlightning.algorithms.base import LocalGradientAlgorithm, Point, Reply, over_all_clients, per_block
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import constant
from fedlightning.core.validation import require
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
        lam: Dual variable of the consensus constraint w_i = z, ``[d]`` for one client, ``[S, d]`` for a cohort.
    """

    lam: Tensor


@dataclass(frozen=True)
class ServerOfAll(Server):
    """Holds the server's state when the mean covers all clients.

    Attributes:
        mean: Mean of u_i over all N clients, ``[d]``; a server optimizer may take ``z`` elsewhere.
    """

    mean: Tensor


@dataclass(frozen=True)
class ClientOfAll(Client):
    """Holds the state of a client when the mean covers all clients.

    Attributes:
        u: What it sent last, u_i, ``[d]`` for one client, ``[S, d]`` for a cohort.
    """

    u: Tensor


@dataclass(frozen=True)
class Change:
    """Holds the upload of a client when the mean covers all clients.

    Attributes:
        du: Change of u_i, ``[S, d]``; the server receives the sum over the cohort, divided by N.
    """

    du: Tensor = over_all_clients()


@dataclass(frozen=True, eq=False)
class FedMM(LocalGradientAlgorithm):
    """Runs federated minimax by an augmented Lagrangian; without a max block, ADMM with local gradient steps.

    Where only some clients take part in a round, the paper's method does not converge to the saddle: choose
    ``mean_over="all"``.

    Args:
        lr: Local step size eta > 0 (eta_1, eta_2): one number, ``[min, max]`` or by name prefix.
        mu: Penalty mu > 0 (mu_1, mu_2): one number, ``[min, max]`` or by name prefix.
        eta3: Decay 0 < eta3 <= 1 of the dual correction a round; the correction of round t is eta3^t.
        mean_over: Whose corrected local points the server averages: of the ``cohort``, as in the paper, which
            is exact with all clients in every round only; or of ``all`` clients, with the last points of absent ones.
        local_optimizer: Elementwise torch optimizer for the local steps in place of plain gradient steps.
    """

    state_depends_on = ("mean_over",)

    mu: PerBlock = per_block(1.0)
    eta3: float = constant("it is the base of a schedule itself", 1.0)
    mean_over: Literal["cohort", "all"] = "cohort"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "mu", above=0.0)
        require(self, "eta3", above=0.0, at_most=1.0)
        if self.mean_over not in ("cohort", "all"):
            raise InvalidValueError(f"FedMM(mean_over={self.mean_over!r}): expected 'cohort' or 'all'.")

    @property
    def accumulates(self) -> bool:
        """Return whether the mean over all clients grows by increments."""
        return self.mean_over == "all"

    @property
    def partial_cohorts(self) -> str | None:
        """Return advice if the server averages the cohort only, which is exact with all clients."""
        if self.mean_over == "all":
            return None
        return "with some of the clients a round it does not converge to the saddle; mean_over: all does."

    def init_server(self, z: Tensor) -> Server:
        """Start at the point, with no round done."""
        return Server(z, t=0) if self.mean_over == "cohort" else ServerOfAll(z, 0, mean=z)

    def init_client(self, z: Tensor) -> Client:
        """Start with the dual at zero."""
        lam = torch.zeros_like(z)
        return Client(lam) if self.mean_over == "cohort" else ClientOfAll(lam, u=z)

    def broadcast(self, server: Server) -> Server:
        """Send the global point and the round."""
        return Server(server.z, server.t)

    def client_update(self, message: Server, state: Client, oracle: GradientOracle) -> Reply:
        """Take K local steps on the augmented Lagrangian, then one dual step."""
        z, mu, lam = message.z, self.mu, state.lam
        w, v = self.local_steps(z, oracle, lambda w, g: g + mu * (w - z) + lam)
        lam = lam + mu * (w - z)
        u = w + self.eta3**message.t / mu * lam
        log = {"dual_norm": lam.norm(dim=1)}
        if isinstance(state, ClientOfAll):
            return Reply(Change(u - state.u), ClientOfAll(lam, u), personal=v, point=w, log=log)
        return Reply(Point(u), Client(lam), personal=v, point=w, log=log)

    def server_update(self, server: Any, update: Any) -> Server:
        """Move to the mean of the corrected local points."""
        if self.mean_over == "cohort":
            return Server(update.z, server.t + 1)
        mean = server.mean + update.du
        return ServerOfAll(mean, server.t + 1, mean)
