"""FeDualEx (Bai, Bullins, ICLR 2024, Algorithm 1): federated dual extrapolation for composite saddle point problems.

Client, k = 0, ..., K - 1:  z      = at(dual, k)
                            middle = dual - lr * g_i(z; xi)
                            dual  <- dual - lr * g_i(at(middle, k + 1); xi')       xi, xi' independent minibatches
Server:                     dual  <- dual + lr_server * mean(dual_K - dual_0)

at(dual, k), ``dual`` and the start are those of FedDualAvg: thresholds weigh lr * (lr_server * T + k), those of the
extrapolated point one step more.

The paper returns the mean over all rounds and steps of at(mean over clients of middle, k + 1). It cannot be had from
end-of-round uploads, so ``output="ergodic"`` uploads every middle dual, K + 1 times as many floats; ``output="last"``,
the default, returns the server's own projection. Local steps do not depend on the choice.

With one client it is stochastic dual extrapolation (the paper's Algorithm 3, rate O(1/T + sigma/sqrt(T)) in the gap),
with one client and full batches the deterministic one (Algorithm 4, rate O(1/T)); without ψ and for one step a round
Nesterov's dual extrapolation.

Symbols: s_bar - s -> dual; eta^c -> lr; eta^s -> lr_server; psi -> regularizer and max_regularizer of the task; K ->
local_steps of the data; R -> max_steps of the Trainer.

Departures: the model holds the server's own projection unless ``output="ergodic"`` asks for the mean of the theory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from fedlightning.algorithms.base import Phase, Reply, relative_to
from fedlightning.algorithms.fed_dual_avg import Change, Dual, FedDualAvg
from fedlightning.core.errors import InvalidValueError
from fedlightning.oracle.gradient import GradientOracle
from fedlightning.oracle.minibatch import Minibatch


@dataclass(frozen=True)
class Server(Dual):
    """Holds the server's state between rounds.

    Attributes:
        total: Sum of the intermediate points of all rounds, ``[d]``; ``[0]`` without ergodic output.
        count: How many they are.
    """

    total: Tensor
    count: int = 0


@dataclass(frozen=True)
class Trace(Change):
    """Holds the upload of a client for the ergodic output.

    Attributes:
        middles: Intermediate duals of every local step, ``[S, K, d]``.
    """

    middles: Tensor = relative_to("dual")


@dataclass(frozen=True, eq=False)
class FeDualEx(FedDualAvg):
    """Runs federated dual extrapolation.

    Args:
        lr: Client step size eta_c > 0: one number, ``[min, max]`` or by name prefix.
        lr_server: Server step size eta_s > 0: the same.
        output: Which point the model holds: ``last``, or ``ergodic``, the mean the theory speaks of.
    """

    output: Literal["last", "ergodic"] = "last"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.output not in ("last", "ergodic"):
            raise InvalidValueError(f"FeDualEx(output={self.output!r}): expected 'last' or 'ergodic'.")

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return one exchange that draws two minibatches for each local step."""
        return (Phase(self.broadcast, self.client_update, self.server_update, draws=2),)

    def init_server(self, z: Tensor) -> Server:
        """Start at the dual image of the starting point."""
        start = super().init_server(z)
        return Server(start.dual, start.steps, torch.zeros_like(z) if self.output == "ergodic" else z.new_empty(0))

    def broadcast(self, server: Dual) -> Dual:
        """Send the dual and the number of steps so far."""
        return Dual(server.dual, server.steps)

    def client_update(self, message: Dual, state: Any, oracle: GradientOracle) -> Reply:
        """Take K local steps of dual extrapolation."""
        dual, v = message.dual.expand(oracle.num_clients, -1), oracle.personal
        middles = []
        for k, (first, second) in enumerate(oracle.pairs()):
            middle = dual - self.lr * oracle.shared_gradient(self.at(dual, message, k), v, first)
            g, v = oracle.step_personal(self.at(middle, message, k + 1), v, second, self.personal_lr)
            dual = second.keep(dual - self.lr * g, dual)
            if self.output == "ergodic":
                middles.append(self._of_all(middle, second))
        change, steps = dual - message.dual, oracle.steps / 2
        trace = Trace(change, steps, torch.stack(middles, dim=1)) if middles else Change(change, steps)
        return self.reply(trace, v)

    def server_update(self, server: Any, update: Any) -> Server:
        """Step along the mean change, and add up the points of the mean intermediate duals."""
        after = super().server_update(server, update)
        total, count = server.total, server.count
        if self.output == "ergodic":
            total = total + sum(self.at(middle, server, k + 1) for k, middle in enumerate(update.middles))
            count += len(update.middles)
        return Server(after.dual, after.steps, total, count)

    def point(self, server: Any) -> Tensor:
        """Return the point of the server's dual, or the mean of the intermediate points."""
        if self.output == "last" or server.count == 0:
            return super().point(server)
        mean: Tensor = server.total / server.count
        return mean

    def _of_all(self, middle: Tensor, batch: Minibatch) -> Tensor:
        if batch.active is not None:
            raise InvalidValueError(
                "FeDualEx(output='ergodic') averages the intermediate points of every local step over the clients, but "
                "some clients take fewer steps. Set the data module's local_steps, or use output='last'."
            )
        return middle
