"""FedAvg (McMahan et al., AISTATS 2017) whose clients keep their optimizers' moments from round to round.

Client, K times:  w <- w - lr * move(w, g_i(w), m_i),  from w = z, with the moments m_i of the client's last round
Server:           z <- mean(w)

FedAvg's clients make a new optimizer in every round, so that momentum and Adam forget all they knew, and Adam's first
steps of a round are those of its bias correction. Here they go on. The points are averaged, the moments are not (Wang
et al., Local Adaptivity in Federated Learning, 2021, compare such choices). A client that has never taken part starts
with moments of zero. With one client this is centralised training with the optimizer, whatever the number of rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from fedlightning.algorithms.base import Point, Reply
from fedlightning.algorithms.fed_avg import FedAvg
from fedlightning.core.errors import InvalidValueError
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_optimizer is not None:
            require_instance("StatefulFedAvg(local_optimizer", self.local_optimizer, LocalOptimizer, "Adam()")

    def bind(self, space: ParameterSpace, like: Tensor, regularizer: Composite | None = None) -> StatefulFedAvg:
        """Return a bound copy; see :meth:`~fedlightning.algorithms.base.LocalGradientAlgorithm.bind`.

        Raises:
            ValueError: If the task has personal parameters, whose moments nobody keeps.
        """
        if space.personal.dim:
            raise InvalidValueError(
                "StatefulFedAvg keeps the moments of shared parameters alone, but the task has personal_parameters. "
                "Take FedAvg or FedAlt, whose clients start with new moments in every round."
            )
        bound = super().bind(space, like, regularizer)
        if bound.local_optimizer is None:
            object.__setattr__(bound, "local_optimizer", SGD().bind(space, like))
        return bound

    def init_client(self, z: Tensor) -> Moments:
        """Start with moments of zero."""
        return (SGD() if self.local_optimizer is None else self.local_optimizer).start(z)

    def client_update(self, message: Point, state: Moments, oracle: GradientOracle) -> Reply:
        """Take K local steps from the received point, with the moments of the client's last round."""
        assert self.local_optimizer is not None  # once bound
        steps = OptimizerSteps(self.local_optimizer, self.lr, state)
        w, _ = self.local_steps(message.z, oracle, optimizer=steps)
        return Reply(Point(w), steps.moments, point=w)
