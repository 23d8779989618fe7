"""CODA+ (Yuan, Guo, Xu, Ying, Yang, ICML 2021): stages of local SGDA around a reference point.

Client, K times:  w <- w - lr_s * (g_i(w) + theta * (w - reference) on the min block),  from w = z
Server:           z <- mean(w)
Stage s ends after ``stage_steps`` local updates: reference <- x, lr_s = lr / 3^s.

Written for AUC maximisation, nonconvex in x and strongly concave in y: each stage solves a problem that the proximal
term makes strongly convex.

Symbols: v -> the min block; alpha -> the max block; eta_l -> lr; theta -> theta; K_0 -> stage_steps; K -> local_steps
of the data.

Departures: stages of equal length, each with a third of the step size, and any cohort, as Xie et al. (CDMA, AAAI 2023)
run it; a stage ends with the round in which its steps are done.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Reply, count, per_block, relative_to
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import PerRound
from fedlightning.core.validation import require, require_step_size
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state, which is also the message to the clients.

    Attributes:
        z: The point, ``[d]``.
        reference: Min block at the beginning of the stage, ``[min_dim]``.
        steps: Local updates since then, ``[]``.
        stage: s, from 0.
    """

    z: Tensor
    reference: Tensor
    steps: Tensor
    stage: int


@dataclass(frozen=True)
class Update:
    """Holds the upload of a client.

    Attributes:
        w: Local point, ``[S, d]``.
        steps: Local updates it took, ``[S]``.
    """

    w: Tensor = relative_to("z")
    steps: Tensor = count()


@dataclass(frozen=True, eq=False)
class CODAPlus(Algorithm):
    """Runs staged local SGDA with a proximal term.

    Args:
        lr: Local step size > 0 of the first stage: one number, ``[min, max]`` or by name prefix.
        theta: Weight >= 0 of the proximal term.
        stage_steps: Local updates K_0 >= 1 of a stage; the round in which they are reached ends it.
    """

    lr: PerBlock = per_block()
    theta: PerRound = 0.1
    stage_steps: int = 4000

    def __post_init__(self) -> None:
        require_step_size(self, "lr")
        require(self, "theta", at_least=0.0)
        require(self, "stage_steps", at_least=1)

    def init_server(self, z: Tensor) -> Server:
        """Start with the point as the first reference."""
        return Server(z, z[: self.min_dim], z.new_zeros(()), stage=0)

    def broadcast(self, server: Server) -> Server:
        """Send the point, the reference and the stage."""
        return server

    def client_update(self, message: Server, state: Any, oracle: GradientOracle) -> Reply:
        """Take K local steps on the problem of the stage."""
        w, v = self.local_steps(message, oracle, 0.0)
        return Reply(Update(w, oracle.steps), personal=v, point=w)

    def server_update(self, server: Server, update: Update) -> Server:
        """Move to the mean of the local points, and begin a new stage when the old one is complete."""
        return self.advance(server, update.w, update.steps)

    def with_point(self, server: Server, z: Tensor) -> Server:
        """Move to ``z``, whose min block also becomes the reference if a stage has just begun."""
        begins = not bool(server.steps)
        return replace(server, z=z, reference=z[: self.min_dim] if begins else server.reference)

    def local_steps(
        self, message: Server, oracle: GradientOracle, correction: Tensor | float
    ) -> tuple[Tensor, Tensor | None]:
        """Take K steps from ``message.z`` with a correction ``[S, d]`` added to the direction."""
        w, v = message.z.expand(oracle.num_clients, -1), oracle.personal
        lr, personal_lr = self.stage_lr(message.stage), self.personal_lr / 3**message.stage
        for batch in oracle.batches():
            g, v = oracle.step_personal(w, v, batch, personal_lr)
            w = batch.keep(w - lr * (g + self.pull(w, message) + correction), w)
        return w, v

    def pull(self, w: Tensor, message: Server) -> Tensor:
        """Return theta * (x - reference) on the min block and zero on the max block."""
        x, y = w[:, : self.min_dim], w[:, self.min_dim :]
        return torch.cat([self.theta * (x - message.reference), torch.zeros_like(y)], dim=1)

    def step_scale(self, server: Server) -> float:
        """Return 1 / 3^s."""
        return float(1 / 3**server.stage)

    def stage_lr(self, stage: int) -> Any:
        """Return lr / 3^s."""
        return self.lr / 3**stage

    def advance(self, server: Server, z: Tensor, steps: Tensor) -> Server:
        """Return the state after a round of ``steps`` local updates."""
        done = server.steps + steps
        if done >= self.stage_steps:
            return Server(z, z[: self.min_dim], torch.zeros_like(done), server.stage + 1)
        return Server(z, server.reference, done, server.stage)
