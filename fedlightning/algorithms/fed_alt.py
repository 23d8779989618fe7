"""FedAlt (Pillutla et al., ICML 2022, Algorithm 2): partial personalisation, one block after the other.

Client:   v_i <- v_i - lr * grad_v f_i(v_i, z),   over the round's minibatches, the shared block fixed
          w   <- w - lr * g_i(v_i, w),            over the same minibatches from w = z, the personal block fixed
Server:   z   <- mean(w)

Both blocks go through the minibatches of the round in the same order, so a round takes twice as many gradients as
FedSim (:class:`FedAvg`, both blocks at once), each of one block alone. Without personal parameters it is FedAvg.

Symbols: u -> z; v_i -> v, the personal block; gamma_u, gamma_v -> lr, by name prefix; tau_v -> personal_passes times
the minibatches of the round; tau_u -> local_steps of the data.

Departures: the personal block goes through the minibatches that the shared one then meets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from fedlightning.algorithms.base import Point, Reply
from fedlightning.algorithms.fed_avg import FedAvg
from fedlightning.core.validation import require
from fedlightning.local import descend, descend_personal
from fedlightning.local.descent import steps_of
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True, eq=False)
class FedAlt(FedAvg):
    """Averages the shared block, after local steps of the personal block alone.

    Args:
        lr: Local step size eta > 0 of both blocks: one number, ``[min, max]`` or by name prefix.
        personal_passes: How often the personal block goes through the round's minibatches.
        local_optimizer: Elementwise torch optimizer for the shared block in place of plain gradient steps, or one of
            :mod:`fedlightning.local` for both blocks.
    """

    personal_passes: int = 1

    without_personal: ClassVar[str] = "FedAvg"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "personal_passes", at_least=1)

    def client_update(self, message: Point, state: Any, oracle: GradientOracle) -> Reply:
        """Take steps of the personal block at the received point, then of the shared block."""
        z = message.z
        start, passes = z.expand(oracle.num_clients, -1), self.personal_passes
        _, step = steps_of(self.local_optimizer, start, self.lr, self.personal_lr)
        v = descend_personal(start, oracle, self.personal_lr, passes=passes, clip=self.local_clip, step=step)
        w, _ = descend(z, oracle, self.lr, optimizer=self.local_optimizer, clip=self.local_clip, personal=v)
        return Reply(Point(w), personal=v, point=w)
