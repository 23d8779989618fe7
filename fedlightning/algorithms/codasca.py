"""CODASCA (Yuan, Guo, Xu, Ying, Yang, ICML 2021): CODA+ with SCAFFOLD's control variates on both blocks.

Client, K times:  w <- w - lr_s * (g_i(w) + theta * (w - reference) on the min block - c_i + c),  from w = z
                  c_i' = c_i - c + (z - w) / (K * lr_s)
Server:           z <- z + lr_server * mean(w - z)
                  c <- c + (S/N) * mean(c_i' - c_i)
Stages as in CODA+.

c is the mean of c_i over all N clients at all times, whoever takes part. Control variates are kept across stages.

Symbols: v -> the min block; alpha -> the max block; eta_l -> lr; eta_g -> lr_server; theta -> theta; K_0 ->
stage_steps; K -> local_steps of the data.

Departures: those of CODA+.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms import coda_plus
from fedlightning.algorithms.base import Reply, over_all_clients, per_block
from fedlightning.algorithms.coda_plus import CODAPlus
from fedlightning.algorithms.scaffold import DIVIDES
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require, require_step_size
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server(coda_plus.Server):
    """Holds the server's state, which is also the message to the clients.

    Attributes:
        c: Mean control variate over all N clients, ``[d]``.
    """

    c: Tensor


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        c: Control variate c_i, ``[d]`` for one client, ``[S, d]`` for a cohort.
    """

    c: Tensor


@dataclass(frozen=True)
class Update(coda_plus.Update):
    """Holds the upload of a client.

    Attributes:
        dc: Change of the control variate, ``[S, d]``; the server gets its sum over the cohort divided by N.
    """

    dc: Tensor = over_all_clients()


@dataclass(frozen=True, eq=False)
class CODASCA(CODAPlus):
    """Runs staged local SGDA with a proximal term and control variates.

    Args:
        lr: Local step size > 0 of the first stage: one number, ``[min, max]`` or by name prefix.
        theta: Weight >= 0 of the proximal term.
        stage_steps: Local updates K_0 >= 1 of a stage; the round in which they are reached ends it.
        lr_server: Server step size eta_g > 0: one number, ``[min, max]`` or by name prefix.
    """

    lr_server: PerBlock = per_block(1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "lr", above=0.0, because=DIVIDES)
        require_step_size(self, "lr_server")

    @property
    def accumulates(self) -> bool:
        """Return True, because the mean over all clients grows by increments."""
        return True

    def init_server(self, z: Tensor) -> Server:
        """Start with the point as the first reference and control variates at zero."""
        return Server(z, z[: self.min_dim], z.new_zeros(()), stage=0, c=torch.zeros_like(z))

    def init_client(self, z: Tensor) -> Client:
        """Start with control variates at zero."""
        return Client(torch.zeros_like(z))

    def client_update(self, message: Any, state: Any, oracle: GradientOracle) -> Reply:
        """Take K corrected local steps, then compute the new control variate."""
        w, v = self.local_steps(message, oracle, message.c - state.c)
        c = state.c - message.c + (message.z - w) / (oracle.steps[:, None] * self.stage_lr(message.stage))
        return Reply(Update(w, oracle.steps, c - state.c), Client(c), personal=v, point=w)

    def server_update(self, server: Any, update: Any) -> Server:
        """Step along the mean move, and keep c equal to the mean over all clients."""
        z = server.z + self.lr_server * (update.w - server.z)
        after = self.advance(server, z, update.steps)
        return Server(after.z, after.reference, after.steps, after.stage, server.c + update.dc)
