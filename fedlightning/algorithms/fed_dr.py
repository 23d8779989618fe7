"""FedDR (Tran-Dinh, Pham, Phan, Nguyen, NeurIPS 2021, Algorithm 1): randomised Douglas-Rachford splitting.

Client:  y_i <- y_i + alpha * (z - x_i)
         x_i <- approximately prox_{eta f_i}(y_i) = argmin f_i(x) + 1/(2 eta) * ||x - y_i||^2,  started at x_i
         xhat_i = 2 * x_i - y_i;  upload its change
Server:  xhat follows the uploads, the mean of xhat_i over all N clients
         z <- prox_{eta ψ}(xhat)

The problem is mean_i f_i + ψ, the package's own. Clients never sampled count with y_i = x_i = xhat_i = the start (the
paper solves for all of them first; counting them as zeros is a known bug of released code). Increments keep the mean
exact, so the cost of a round does not depend on N.

Proven for cohorts drawn at random, smooth f_i, convex ψ, small eta and 0 < alpha < 2 depending on it: stationary
points at rate O(1/T) with errors of the subproblems that sum up or shrink with ||x_i^+ - x_i||. The operator form with
a max block is Douglas-Rachford splitting of monotone operators, proven for exact subproblems and all clients.

Symbols: x_i, y_i -> x, y of a client; x_bar -> z; eta -> eta; alpha -> alpha; epsilon_i -> stop; g -> regularizer of
the task.

Departures: the start of clients that were never sampled, as above; how accurately subproblems are solved is left to
``solver`` and ``stop``.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlightning.algorithms.base import Reply, over_all_clients, per_block
from fedlightning.algorithms.splitting import SplittingAlgorithm
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import PerRound
from fedlightning.core.validation import require
from fedlightning.local.subproblem import Subproblem
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state between rounds.

    Attributes:
        xhat: Mean of xhat_i over all N clients, ``[d]``.
        t: Round, from 0.
    """

    xhat: Tensor
    t: int


@dataclass(frozen=True)
class Message:
    """Holds the message from the server to the clients.

    Attributes:
        z: The point, ``[d]``.
        t: Round.
    """

    z: Tensor
    t: int


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        x: Its point x_i, ``[d]``.
        y: Anchor y_i of its subproblem, ``[d]``.
    """

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Change:
    """Holds the upload of a client.

    Attributes:
        dxhat: Change of xhat_i, ``[S, d]``; the server receives the sum over the cohort, divided by N.
    """

    dxhat: Tensor = over_all_clients()


@dataclass(frozen=True, eq=False)
class FedDR(SplittingAlgorithm):
    """Runs federated Douglas-Rachford splitting.

    Args:
        eta: Proximal step size > 0: one number, ``[min, max]`` or by name prefix.
        alpha: Relaxation 0 < alpha < 2.
        solver: Solves the subproblems; null for the K minibatch steps the data module gives.
        stop: When a client is done before; null for never.
    """

    regularized = True

    eta: PerBlock = per_block(constant="each y_i has the scale of the round that computed it")
    alpha: PerRound = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "eta", above=0.0)
        require(self, "alpha", above=0.0, below=2.0)

    @property
    def accumulates(self) -> bool:
        """Return True, because the mean over all clients grows by increments."""
        return True

    def init_server(self, z: Tensor) -> Server:
        """Start with all clients at the projected point."""
        return Server(self.regularizer.project(z), 0)

    def init_client(self, z: Tensor) -> Client:
        """Start at the projected point."""
        z = self.regularizer.project(z)
        return Client(z, z)

    def broadcast(self, server: Server) -> Message:
        """Send the global point and the round."""
        return Message(self.point(server), server.t)

    def client_update(self, message: Message, state: Client, oracle: GradientOracle) -> Reply:
        """Move the centre, solve the subproblem, then reflect the solution."""
        y = state.y + self.alpha * (message.z - state.x)
        solution = self.solve(state.x, oracle, Subproblem(y, 1 / self.eta, turn=message.t))
        x = solution.w
        change = (2 * x - y) - (2 * state.x - state.y)
        return Reply(Change(change), Client(x, y), personal=solution.personal, point=x, log=solution.log)

    def server_update(self, server: Server, update: Change) -> Server:
        """Update the exact mean of all reflections."""
        return Server(server.xhat + update.dxhat, server.t + 1)

    def point(self, server: Server) -> Tensor:
        """Return the proximal point of the mean, or the start itself before the first round."""
        return self.regularizer.prox(server.xhat, self.eta) if server.t else server.xhat
