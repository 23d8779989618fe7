"""FedMM (Shen et al., 2022, Algorithm 3): an augmented Lagrangian for the consensus of the clients' saddle points.

Y. Shen, J. Du, H. Zhao, B. Zhang, Z. Ji, M. Gao: FedMM: Saddle point optimization for federated adversarial domain
adaptation.

Client, K times:  w <- w - lr * (g_i(w) + mu * (w - z) + lam_i),  from w = z
                  lam_i <- lam_i + mu * (w - z)
                  upload  w + eta3^t / mu * lam_i
Server:           z <- mean(upload)

lam_i collects the duals of both blocks (lambda and beta in the paper, in operator sign), mu is (mu_1, mu_2) and t the
round. All blocks are taken at the same iterate. Two misprints of the paper are resolved: eq. (9) means 1/mu_1, and line
19 averages psi^{t+}, as (16) does; averaging psi^{t+1} converges to a wrong point.

At a fixed point w = z and lam_i = -g_i(z), so the mean of the duals is minus the operator of f and vanishes: for
eta3 = 1 the method reaches the exact saddle for any K. eta3 < 1 lets this correction fade; with a quickly fading one it
ends away from the saddle. With duals frozen at 0 it is FedProxGDA. In a partial cohort the mean covers those who
answered; the duals of the others wait unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.algorithms.base import LocalGradientAlgorithm, Point, Reply
from fedlightning.oracle.cohort import CohortOracle
from fedlightning.ranges import require
from fedlightning.space import PerBlock


@dataclass(frozen=True)
class Server:
    """Server state and download.

    Attributes:
        z: The point, ``[d]``.
        t: Round, from 0.
    """

    z: Tensor
    t: int


@dataclass(frozen=True)
class Client:
    """Client state.

    Attributes:
        lam: Dual variable of the consensus constraint w_i = z, ``[d]`` for one client, ``[S, d]`` for a cohort.
    """

    lam: Tensor


@dataclass(frozen=True, eq=False)
class FedMM(LocalGradientAlgorithm):
    """Federated minimax by an augmented Lagrangian; federated ADMM with local gradient steps for minimisation.

    Args:
        lr: Local step size eta > 0 (eta_1, eta_2): one number, ``[min, max]`` or by name prefix.
        mu: Penalty mu > 0 (mu_1, mu_2): one number, ``[min, max]`` or by name prefix.
        eta3: Decay 0 < eta3 <= 1 of the dual correction a round; the correction of round t is eta3^t.
        local_optimizer: Elementwise torch optimizer for the local steps in place of plain gradient steps.
    """

    mu: PerBlock = 1.0
    eta3: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "mu", above=0.0)
        require(self, "eta3", above=0.0, at_most=1.0)

    def init_server(self, z: Tensor) -> Server:
        """The point and the round."""
        return Server(z, t=0)

    def init_client(self, z: Tensor) -> Client:
        """Duals start at zero."""
        return Client(torch.zeros_like(z))

    def down(self, server: Server) -> Server:
        """The point and the round."""
        return server

    def client(self, down: Server, rows: Client, oracle: CohortOracle) -> Reply:
        """K steps on the augmented Lagrangian, then one on its dual."""
        z, mu, lam = down.z, self.mu, rows.lam
        w = self.local_steps(z, oracle, lambda w, g: g + mu * (w - z) + lam)
        lam = lam + mu * (w - z)
        up = w + self.eta3**down.t / mu * lam
        return Reply(Point(up), Client(lam), point=w, log={"dual_norm": lam.norm(dim=1)})

    def server(self, server: Server, up: Point) -> Server:
        """The mean of the corrected local points."""
        return Server(up.z, server.t + 1)
