"""FedAPM (Zhu et al., KDD 2025, Algorithm 1): partial personalisation by the alternating direction method.

Client:   v_i  <- near argmin_v  f_i(v, u_i) + sigma/2 |v - v_i|^2                          (15)
          u_i  <- near argmin_u  f_i(v_i, u) + <pi_i, u - z> + rho/2 |u - z|^2              (11), (16)
          pi_i <- pi_i + rho * (u_i - z)                                                    (12)
Server:   z    <- mean over all N clients of z_i = u_i + pi_i / rho                         (8), (13)

Clients outside the cohort keep their last z_i. Clients upload how z_i changed, and the server adds the sum of the
changes divided by N, so the mean over all N is exact whoever takes part. With it sum_i (pi_i + rho (u_i - z)) = 0 holds
after every round; the mean over the cohort alone would end at a wrong point. (These are the duals at the present point.
The stored pi_i were last moved at an earlier one; they sum to zero in the limit, not before.)

The paper minimises sum_i alpha_i f_i with alpha_i = 1/N (or n_i / n) and multiplies f_i by alpha_i on the client; this
package minimises the mean of f_i, and clients need not know N. Dividing a client's Lagrangian by alpha_i turns one into
the other: pi_i, rho and sigma here are N times the paper's, the bounds xi_i of squared gradients N^2 times. (9), which
drops alpha_i, is taken as (15) states it.

The personal block goes through the round's minibatches ``personal_passes`` times, then the shared block does once, and
stops where the squared gradient of its subproblem on a minibatch is at most xi_i. xi_i starts at ``tolerance`` and
shrinks by ``decay`` each time the client takes part; the round's minibatches are the cap on its SGD steps. The paper
does not say where the shared subproblem starts. From the client's own u_i is how the algorithm reads
(``start="local"``); from z is what makes FedAlt the special case without duals and penalty (``start="shared"``, which
also puts z in place of u_i in the personal subproblem).

Symbols: u -> z; u_i -> u of a client; v_i -> v, the personal block; pi_i -> pi; z_i -> u + pi / rho; rho -> rho; sigma
-> sigma; eta -> lr; xi_i -> tolerance; mu -> decay; alpha_i -> weighting of the task.

Departures: the scale of pi, rho, sigma and xi, (15) for (9), and the start of the shared subproblem; see above.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Point, Reply, over_all_clients, per_block
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import PerRound, constant
from fedlightning.core.validation import require, require_step_size
from fedlightning.local import descend_personal, descend_until
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        u: Local model u_i, ``[d]`` for one client, ``[S, d]`` for a cohort.
        pi: Dual variable of u_i = z, likewise.
        xi: Tolerance of the client's last subproblem, ``[]`` for one client, ``[S]`` for a cohort.
    """

    u: Tensor
    pi: Tensor
    xi: Tensor


@dataclass(frozen=True)
class Upload:
    """Holds the upload of a client.

    Attributes:
        dz: Change of z_i = u_i + pi_i / rho, ``[S, d]``; the server receives the sum over the cohort, divided by N.
    """

    dz: Tensor = over_all_clients()


@dataclass(frozen=True, eq=False)
class FedAPM(Algorithm):
    """Runs federated ADMM with a personal block on every client.

    Args:
        lr: Local step size eta > 0 of both blocks: one number, ``[min, max]`` or by name prefix.
        rho: Penalty rho > 0 on the distance of local to shared models: one number, ``[min, max]`` or by name prefix.
        sigma: Proximal weight sigma >= 0 of the personal block.
        tolerance: Squared gradient xi >= 0 before decay, at ``tolerance * decay`` a client first stops; 0 for all
            minibatches of the round.
        decay: Factor 0 < mu <= 1 of a client's tolerance each time it takes part.
        personal_passes: How often the personal block goes through the round's minibatches.
        start: Where the subproblems start: at the client's own ``local`` model or at the ``shared`` one.
    """

    lr: PerBlock = per_block()
    rho: PerBlock = per_block(0.1, constant="the server's mean of u_i + pi_i / rho is in its units")
    sigma: PerRound = 0.1
    tolerance: float = constant("clients start with it, and carry on from their own", 0.0)
    decay: PerRound = 0.95
    personal_passes: int = 1
    start: Literal["local", "shared"] = "local"

    state_depends_on = ("rho", "tolerance")
    without_personal: ClassVar[str] = "a federated ADMM of the shared parameters alone"
    primal: ClassVar[bool] = False  # the mean of all z_i grows by what clients send; moved elsewhere it is no mean

    def __post_init__(self) -> None:
        require_step_size(self, "lr")
        require(self, "rho", above=0.0)
        require(self, "sigma", "tolerance", at_least=0.0)
        require(self, "decay", above=0.0, at_most=1.0)
        require(self, "personal_passes", at_least=1)
        if self.start not in ("local", "shared"):
            raise InvalidValueError(f"FedAPM(start={self.start!r}): expected 'local' or 'shared'.")

    @property
    def accumulates(self) -> bool:
        """Return True, because the mean over all clients grows by increments."""
        return True

    def init_server(self, z: Tensor) -> Point:
        """Start with the mean of all z_i at the point."""
        return Point(z)

    def init_client(self, z: Tensor) -> Client:
        """Start with the local model at the point and the dual at zero."""
        return Client(z, torch.zeros_like(z), z.new_tensor(self.tolerance))

    def broadcast(self, server: Point) -> Point:
        """Send the global point."""
        return server

    def client_update(self, message: Point, state: Client, oracle: GradientOracle) -> Reply:
        """Solve the personal subproblem, then the shared one, then take a dual step."""
        z, rho, pi, before = message.z, self.rho, state.pi, oracle.personal
        u = state.u if self.start == "local" else z.expand_as(state.u)
        xi = state.xi * self.decay

        def pulled(v: Tensor, g: Tensor) -> Tensor:
            return g if before is None else g + self.sigma * (v - before)

        v = descend_personal(u, oracle, self.personal_lr, pulled, self.personal_passes)
        u = descend_until(u, v, oracle, self.lr, lambda w, g: g + pi + rho * (w - z), xi)
        new = Client(u, pi + rho * (u - z), xi)
        change = (new.u + new.pi / rho) - (state.u + state.pi / rho)
        return Reply(Upload(change), new, personal=v, point=u, log={"dual_norm": new.pi.norm(dim=1)})

    def server_update(self, server: Point, update: Upload) -> Point:
        """Update the exact mean of all clients' z_i."""
        return Point(server.z + update.dz)

    def carried_over(self, server: Point, before: FedAPM, clients: Client | None) -> Point | None:
        """Return the mean of z_i with the new rho, or None if the tolerance changed or the client mean is unknown."""
        if clients is None or self.tolerance != before.tolerance:
            return None
        return Point(clients.u + clients.pi / self.rho)
