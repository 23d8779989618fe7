"""Ditto (Li et al., ICML 2021, Algorithm 1): a personal model beside federated averaging.

Client:   w   <- w - lr * g_i(w),                                K times from w = z
          v_i <- v_i - lr_own * (g_i(v_i) + lam * (v_i - z)),    K times on the same minibatches
Server:   z   <- mean(w)

v_i is a model of its own for every shared parameter; it stays on the client and never influences z. lam = 0 trains it
on the client's data alone, a large lam ties it to z. A task's personal block goes along with w, and v_i is trained
beside the block so found. Averaged statistics (BatchNorm's) are those of w alone.

Symbols: w -> z; w_k -> w; v_k -> v; lambda -> lam; eta -> lr and lr_own; s -> local_steps of the data.

Departures: the personal model takes as many steps as the global one, on the same minibatches, where the paper's
algorithm gives it a number of steps of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedlightning.algorithms.base import Point, Reply, per_block
from fedlightning.algorithms.fed_avg import FedAvg
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require, require_step_size
from fedlightning.local import descend
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        v: The personal model, ``[d]`` for one client, ``[S, d]`` for a cohort.
    """

    v: Tensor


@dataclass(frozen=True, eq=False)
class Ditto(FedAvg):
    """Runs federated averaging beside personal models that are pulled towards the global one.

    Args:
        lr: Local step size eta > 0 of the global model: one number, ``[min, max]`` or by name prefix.
        lam: Pull lambda >= 0 towards the global model: one number, ``[min, max]`` or by name prefix.
        lr_own: Step size > 0 of the personal model; null for ``lr``.
        local_optimizer: Elementwise torch optimizer for both in place of plain gradient steps.
    """

    lam: PerBlock = per_block(1.0)
    lr_own: PerBlock | None = per_block(None)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "lam", at_least=0.0)
        require_step_size(self, "lr_own", optional=True)

    def init_client(self, z: Tensor) -> Client:
        """Start with the personal model at the point."""
        return Client(z)

    def client_update(self, message: Point, state: Client, oracle: GradientOracle) -> Reply:
        """Take K steps of the global model, then K steps of the personal one."""
        z, lam = message.z, self.lam
        w, v = self.local_steps(z, oracle)
        statistics = oracle.buffers
        lr = self.lr if self.lr_own is None else self.lr_own
        own, _ = descend(
            state.v,
            oracle,
            lr,
            lambda own, g: g + lam * (own - z),
            self.local_optimizer,
            clip=self.local_clip,
            personal=v,
        )
        oracle.take_back(statistics)
        log = {"own_distance": (own - z).norm(dim=1)}
        return Reply(Point(w), Client(own), personal=v, point=w, log=log)

    def personal_model(self, state: Client) -> Tensor:
        """Return the personal models."""
        return state.v
