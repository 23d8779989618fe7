"""SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II) and its minimax form SCAFFOLD-S.

Client, K times:  w <- w - lr * (g_i(w) - c_i + c),  from w = z
                  c_i' = c_i - c + (z - w) / (K * lr)
Server:           z <- z + lr_server * mean(w - z)
                  c <- c + (S/N) * mean(c_i' - c_i)

c_i estimates the client's operator and c the mean operator. The increments of c are summed over the cohort and divided
by N, so c = mean of c_i over all N clients at all times, whoever takes part. K is the number of steps the client took.

Symbols: x -> z; y_i -> w; c, c_i -> c; eta_l -> lr; eta_g -> lr_server; K -> local_steps of the data; S, N ->
participation and number of clients of the data.

Departures: none for minimisation. With a max block the same lines run on the operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Reply, increment, over_all_clients, per_block
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require, require_step_size
from fedlightning.local.descent import descend
from fedlightning.oracle.gradient import GradientOracle

DIVIDES = "a control variate is a move divided by lr; let a schedule stay above 0"
"""Why steps of size 0 are refused."""


@dataclass(frozen=True)
class Server:
    """Holds the server's state, which is also the message to the clients.

    Attributes:
        z: The point, ``[d]``.
        c: Mean control variate over all N clients, ``[d]``.
    """

    z: Tensor
    c: Tensor


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        c: Control variate c_i, ``[d]`` for one client, ``[S, d]`` for a cohort.
    """

    c: Tensor


@dataclass(frozen=True)
class Upload:
    """Holds the upload of a client.

    Attributes:
        dz: Move of the point, ``[S, d]``; the server receives its mean over the cohort.
        dc: Change of the control variate, ``[S, d]``; the server receives the sum over the cohort, divided by N.
    """

    dz: Tensor = increment()
    dc: Tensor = over_all_clients()


@dataclass(frozen=True, eq=False)
class SCAFFOLD(Algorithm):
    """Runs stochastic controlled averaging, or SCAFFOLD-S when the task has a max block.

    Args:
        lr: Local step size eta > 0: one number, ``[min, max]`` or by name prefix.
        lr_server: Server step size eta_g > 0: one number, ``[min, max]`` or by name prefix.
    """

    lr: PerBlock = per_block()
    lr_server: PerBlock = per_block(1.0)

    def __post_init__(self) -> None:
        require(self, "lr", above=0.0, because=DIVIDES)
        require_step_size(self, "lr_server")

    @property
    def accumulates(self) -> bool:
        """Return True, because the mean over all clients grows by increments."""
        return True

    def init_server(self, z: Tensor) -> Server:
        """Start at the point, with the mean control variate at zero."""
        return Server(z, torch.zeros_like(z))

    def init_client(self, z: Tensor) -> Client:
        """Start with the control variate at zero."""
        return Client(torch.zeros_like(z))

    def broadcast(self, server: Server) -> Server:
        """Send the global point and the mean control variate."""
        return server

    def client_update(self, message: Server, state: Client, oracle: GradientOracle) -> Reply:
        """Take K corrected local steps, and average the operators on the way into the new control variate."""
        z, c, c_i, lr = message.z, message.c, state.c, self.lr
        w, v = descend(z, oracle, lr, lambda _, g: g - c_i + c, personal_lr=self.personal_lr)
        c_new = c_i - c + (z - w) / (oracle.steps[:, None] * lr)
        log = {"dual_norm": c_new.norm(dim=1)}
        return Reply(Upload(dz=w - z, dc=c_new - c_i), Client(c_new), personal=v, point=w, log=log)

    def server_update(self, server: Server, update: Upload) -> Server:
        """Step along the mean move, and update the exact mean of all control variates."""
        return Server(server.z + self.lr_server * update.dz, server.c + update.dc)


SCAFFOLDS = SCAFFOLD
