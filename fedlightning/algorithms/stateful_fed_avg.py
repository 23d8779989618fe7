"""FedAvg (McMahan et al., AISTATS 2017) whose clients keep their optimizers' moments from round to round.

Client, K times:  w <- w - lr * move(w, g_i(w), m_i),  from w = z, with the moments m_i of the client's last round
Server:           z <- mean(w)

FedAvg's clients make a new optimizer in every round, so that momentum and Adam forget all they knew, and Adam's first
steps of a round are those of its bias correction. Here they go on. The points are averaged, the moments are not (Wang
et al., Local Adaptivity in Federated Learning, 2021, compare such choices). A client that has never taken part starts
with moments of zero. With one client this is centralised training with the optimizer, whatever the number of rounds.

Symbols: x -> z; x_i -> w; eta -> lr; first and second moment of client i -> m_i.

Departures: FedAvg's own clients take plain steps and keep nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from fedlightning.algorithms.base import Point, Reply
from fedlightning.algorithms.fed_avg import FedAvg
from fedlightning.core.parameter_space import ParameterSpace
from fedlightning.core.validation import require_instance
from fedlightning.local.optimizers import SGD, LocalOptimizer, Moments, OptimizerSteps
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.proximal.composite import Composite


@dataclass(frozen=True, eq=False)
class StatefulFedAvg(FedAvg):
    """Averages local points of clients whose optimizers remember earlier rounds.

    Args:
        lr: Local step size eta > 0: one number, ``[min, max]`` or by name prefix.
        local_optimizer: What takes the local steps, and what is remembered of them; null for ``SGD()``, plain steps.
    """

    local_optimizer: LocalOptimizer | None = field(default=None, kw_only=True)

    state_depends_on = ("local_optimizer",)  # another kind remembers other vectors

    personal_dim: ClassVar[int] = 0
    """Length of the personal block, set by :meth:`bind`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_optimizer is not None:
            require_instance("StatefulFedAvg(local_optimizer", self.local_optimizer, LocalOptimizer, "Adam()")

    def bind(self, space: ParameterSpace, like: Tensor, regularizer: Composite | None = None) -> StatefulFedAvg:
        """Return a bound copy; see :meth:`~fedlightning.algorithms.base.LocalGradientAlgorithm.bind`."""
        bound = super().bind(space, like, regularizer)
        if bound.local_optimizer is None:
            object.__setattr__(bound, "local_optimizer", SGD().bind(space, like))
        object.__setattr__(bound, "personal_dim", space.personal.dim)
        return bound

    def init_client(self, z: Tensor) -> Moments:
        """Start with moments of zero, of the shared block and the personal block behind it."""
        optimizer = SGD() if self.local_optimizer is None else self.local_optimizer
        return optimizer.start(torch.cat([z, z.new_zeros(self.personal_dim)]))

    def carried_over(self, server: Point, before: StatefulFedAvg, clients: Moments | None) -> Point:
        """Return the state as it is: an optimizer of the same kind goes on with what clients remember."""
        return server

    def client_update(self, message: Point, state: Moments, oracle: GradientOracle) -> Reply:
        """Take K local steps from the received point, with the moments of the client's last round."""
        assert self.local_optimizer is not None  # once bound
        optimizer, dim = self.local_optimizer, len(message.z)
        shared, own = state.columns(slice(dim)), state.columns(slice(dim, None))
        personal = OptimizerSteps(optimizer.personal, self.personal_lr, own)
        steps = OptimizerSteps(optimizer, self.lr, shared, personal)
        w, v = self.local_steps(message.z, oracle, optimizer=steps)
        assert steps.moments is not None
        assert personal.moments is not None
        return Reply(Point(w), steps.moments.beside(personal.moments), personal=v, point=w)
