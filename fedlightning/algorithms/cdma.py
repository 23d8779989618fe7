"""CDMA (Xie et al., AAAI 2023, Algorithms 1 and 2): cross-device minimax with a global correction.

J. Xie, C. Zhang, Z. Shen, W. Liu, H. Qian: Efficient cross-device federated learning algorithms for minimax problems.

Phase 1 (beta > 0), a cohort S':  upload  g_i(z) - (1 - alpha_t) * g_i(z_before),  full local operators
Server:                           u <- (1 - alpha_t) * u + mean(upload);  in the first round u = mean of g_i(z)
Phase 2, another cohort S, K times:
                                  w <- w - lr_t * (g_i(w; B) + beta * (u - g_i(z; B))),  from w = z
Server:                           z <- mean(w)

lr_t = lr / (t + 1)^rho and alpha_t = min(1, alpha / (t + 1)^(2 rho)) in round t from 0; lr is (eta, gamma) by block.
The two operators of a phase share the data and the random numbers. u estimates the mean operator, so at the saddle
of heterogeneous clients w stays at z: no drift for any K under full participation. Clients keep no state.

* CDMA-NC, no correction: beta = 0, one phase, FedAvgGDA with first responders.
* CDMA-ONE: beta = 1, alpha_t = 1: the correction is that of this round's cohort.
* CDMA-ADA: beta = 1, alpha_t below 1: recursive momentum carries over earlier cohorts.

Symbols: x, y -> z, its min and its max block; eta_t, gamma_t -> lr / (t + 1)^rho, a pair; c_eta, c_gamma -> lr; c_alpha
-> alpha; beta -> beta; rho -> rho; u_t, v_t -> u; S_hat -> size of FirstResponders; K -> local_steps of the data.

Departures: none in the update. How many clients answer is a model of the data module (FirstResponders, ResponseShare),
not of the method.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Phase, Point, Reply, per_block
from fedlightning.algorithms.fed_sgda import Gradient
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import PerRound, constant
from fedlightning.core.validation import require, require_step_size
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state between rounds.

    Attributes:
        z: The point, ``[d]``.
        before: The point of the round before, ``[d]``.
        u: Estimate of the mean operator at ``z``, ``[d]``.
        t: Round, from 0.
    """

    z: Tensor
    before: Tensor
    u: Tensor
    t: int


@dataclass(frozen=True)
class Ask:
    """Holds the message of phase 1.

    Attributes:
        z: The point, ``[d]``.
        before: The point of the round before, ``[d]``; None where it is not needed.
        t: Round.
    """

    z: Tensor
    before: Tensor | None
    t: int


@dataclass(frozen=True)
class Correction:
    """Holds the message of phase 2.

    Attributes:
        z: The point, ``[d]``.
        u: Estimate of the mean operator, ``[d]``; None without correction.
        t: Round.
    """

    z: Tensor
    u: Tensor | None
    t: int


@dataclass(frozen=True, eq=False)
class CDMA(Algorithm):
    """Runs cross-device minimax with a global correction.

    Args:
        lr: Local step size > 0 of the first round: one number, ``[min, max]`` (eta, gamma) or by name prefix.
        beta: Weight 0 <= beta <= 1 of the correction.
        alpha: Weight > 0 of the new cohort in the correction, c_alpha; from 1 on earlier cohorts are forgotten until
            the decay has brought alpha_t below 1.
        rho: Decay 0 <= rho of the step size by round, (t + 1)^-rho.
    """

    state_depends_on = ("beta",)

    lr: PerBlock = per_block()
    beta: float = constant("it decides which phases a round has", 1.0)
    alpha: PerRound = 1.0
    rho: float = constant("it is the exponent of a schedule itself", 0.0)

    def __post_init__(self) -> None:
        require_step_size(self, "lr")
        require(self, "beta", at_least=0.0, at_most=1.0)
        require(self, "alpha", above=0.0)
        require(self, "rho", at_least=0.0)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the collection of operators, if corrections are used, and the local steps, on separate cohorts."""
        collect = Phase(self.broadcast_point, self.collect, self.correct, data="full")
        update = Phase(self.broadcast, self.client_update, self.server_update)
        return (collect, update) if self.beta else (update,)

    def init_server(self, z: Tensor) -> Server:
        """Start at the point without knowledge of its operator."""
        return Server(z, before=z, u=torch.zeros_like(z), t=0)

    def broadcast_point(self, server: Server) -> Ask:
        """Send the point, and the previous point if its operator is needed."""
        return Ask(server.z, None if self.weight(server.t) == 1 else server.before, server.t)

    def collect(self, message: Ask, state: Any, oracle: GradientOracle) -> Reply:
        """Return the full local operator, less the remembered part of the operator at the previous point."""
        remembered: float | Tensor = 0.0
        if message.before is not None:  # with the random numbers of the next line
            remembered = (1 - self.weight(message.t)) * oracle.at_reference(
                message.before.expand(oracle.num_clients, -1)
            )
        return Reply(Gradient(oracle.full(message.z.expand(oracle.num_clients, -1)) - remembered))

    def correct(self, server: Server, update: Gradient) -> Server:
        """Update the estimate of the mean operator (paper, eq. (2))."""
        u = update.g + (1 - self.weight(server.t)) * server.u
        return Server(server.z, server.before, u, server.t)

    def broadcast(self, server: Server) -> Correction:
        """Send the point and the correction."""
        return Correction(server.z, server.u if self.beta else None, server.t)

    def client_update(self, message: Correction, state: Any, oracle: GradientOracle) -> Reply:
        """Take K corrected local steps (paper, eq. (3))."""
        z = w = message.z.expand(oracle.num_clients, -1)
        v = oracle.personal
        decay = (message.t + 1) ** self.rho
        lr, personal_lr = self.lr / decay, self.personal_lr / decay
        for batch in oracle.batches():
            correction = 0.0 if message.u is None else self.beta * (message.u - oracle.at_reference(z, batch, v))
            g, v = oracle.step_personal(w, v, batch, personal_lr)
            w = batch.keep(w - lr * (g + correction), w)
        return Reply(Point(w), personal=v, point=w)

    def server_update(self, server: Server, update: Point) -> Server:
        """Move to the mean of the local points."""
        return Server(update.z, server.z, server.u, server.t + 1)

    def carried_over(self, server: Server, before: CDMA, clients: None) -> Server | None:
        """Return the state as it is, or None if only one of the two runs estimates the mean operator."""
        return server if bool(self.beta) == bool(before.beta) else None

    def step_scale(self, server: Server) -> float:
        """Return 1 / (t + 1)^rho."""
        return float(1 / (server.t + 1) ** self.rho)

    def weight(self, t: int) -> float:
        """Return alpha_t, which is 1 in the first round because nothing is remembered yet."""
        return 1.0 if t == 0 else min(1.0, self.alpha / (t + 1) ** (2 * self.rho))


@dataclass(frozen=True, eq=False)
class CDMA_NC(CDMA):  # the paper's name
    """Runs CDMA without correction.

    Args:
        lr: Local step size > 0: one number, ``[min, max]`` (eta, gamma) or by name prefix.
    """

    beta: float = field(default=0.0, init=False)
    alpha: float = field(default=1.0, init=False)
    rho: float = field(default=0.0, init=False)


@dataclass(frozen=True, eq=False)
class CDMA_ONE(CDMA):
    """Runs CDMA with a correction from the current round's cohort alone.

    Args:
        lr: Local step size > 0: one number, ``[min, max]`` (eta, gamma) or by name prefix.
    """

    beta: float = field(default=1.0, init=False)
    alpha: float = field(default=1.0, init=False)
    rho: float = field(default=0.0, init=False)


@dataclass(frozen=True, eq=False)
class CDMA_ADA(CDMA):
    """Runs CDMA with adaptive correction; the defaults are the paper's for AUC on MNIST but for ``lr``.

    Args:
        lr: Local step size > 0 of the first round, (c_eta, c_gamma): one number, ``[min, max]`` or by name prefix.
        alpha: c_alpha > 0.
        rho: Decay rho >= 0; the theory's is 1/3, the paper often uses 1/5 or 0.
    """

    beta: float = field(default=1.0, init=False)
    alpha: PerRound = 5.0
    rho: float = constant("it is the exponent of a schedule itself", 0.2)
