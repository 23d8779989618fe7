"""FedDualAvg (Yuan, Zaheer, Reddi, ICML 2021): federated dual averaging for composite problems, in operator form.

Client, k = 0, ..., K - 1:  z_k = at(dual, k);  dual <- dual - lr * g_i(z_k)
Server:                     dual <- dual + lr_server * mean(dual_K - dual_0)

at(dual, k) is the point of a dual state: the minimiser of l(z) + t * ψ(z) - <dual, z> with mirror map l and
t = lr * (lr_server * T + k), T the local steps of all rounds before. ψ is charged for all steps at once, so the
threshold of an l1 or nuclear norm grows with the rounds, and averages of sparse points do not undo it.

The paper keeps the sum s of operators and a fixed start s_bar; ``dual`` is s_bar - s. It starts at the dual image of
the task's own parameters, projected into the constraint. Without a regularizer this is FedAvg with a server step size.
For saddle point problems it is a baseline without guarantee; FeDualEx adds the extra step.

Symbols: s_bar - s -> dual; eta_c -> lr; eta_s -> lr_server; psi -> regularizer of the task; K -> local_steps of the
data.

Departures: written for operators, so that it runs with a max block, where nothing is proven.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Reply, count, increment, per_block
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Dual:
    """Holds the server's state, which is also the message to the clients.

    Attributes:
        dual: ``[d]``, in the dual space.
        steps: T, the local steps of all rounds so far (of a round, the cohort's mean), ``[]``. After a resume with
            other step sizes, earlier steps count in units of the new sizes.
    """

    dual: Tensor
    steps: Tensor


@dataclass(frozen=True)
class Change:
    """Holds the upload of a client.

    Attributes:
        dual: Change of the client's dual, ``[S, d]``.
        steps: Local steps it took, ``[S]``.
    """

    dual: Tensor = increment()
    steps: Tensor = count()


@dataclass(frozen=True, eq=False)
class FedDualAvg(Algorithm):
    """Runs federated dual averaging.

    Args:
        lr: Client step size eta_c > 0: one number, ``[min, max]`` or by name prefix.
        lr_server: Server step size eta_s > 0: the same.
    """

    regularized = True
    primal = False
    state_depends_on = ("lr", "lr_server", "regularizer")

    lr: PerBlock = per_block()
    lr_server: PerBlock = per_block(1.0)

    def __post_init__(self) -> None:
        why = "the server counts steps in units of lr * lr_server; let a schedule stay above 0"
        require(self, "lr", "lr_server", above=0.0, because=why)

    def init_server(self, z: Tensor) -> Dual:
        """Start at the dual image of the starting point."""
        return Dual(self.regularizer.to_dual(self.regularizer.start(z)), z.new_zeros(()))

    def broadcast(self, server: Dual) -> Dual:
        """Send the dual and the number of steps so far."""
        return server

    def client_update(self, message: Dual, state: Any, oracle: GradientOracle) -> Reply:
        """Take K local steps of dual averaging."""
        dual, v = message.dual.expand(oracle.num_clients, -1), oracle.personal
        for k, batch in enumerate(oracle.batches()):
            g, v = oracle.step_personal(self.at(dual, message, k), v, batch, self.personal_lr)
            dual = batch.keep(dual - self.lr * g, dual)
        return self.reply(Change(dual - message.dual, oracle.steps), v)

    def server_update(self, server: Dual, update: Change) -> Dual:
        """Step along the mean change."""
        return Dual(server.dual + self.lr_server * update.dual, server.steps + update.steps)

    def carried_over(self, server: Dual, before: FedDualAvg, clients: None) -> Dual | None:
        """Return the state with the same thresholds, or None unless all step sizes change in one proportion."""
        if not self.regularizer:
            return server
        steps, change = server.steps, (before.lr * before.lr_server) / (self.lr * self.lr_server)
        ratio = torch.as_tensor(change, dtype=steps.dtype, device=steps.device).flatten()
        return replace(server, steps=steps * ratio[0]) if torch.allclose(ratio, ratio[0]) else None

    def point(self, server: Dual) -> Tensor:
        """Return the point of the server's dual."""
        return self.at(server.dual, server, 0)

    def reply(self, update: Change, personal: Tensor | None) -> Reply:
        """Return the upload, and log the drift of the duals because it needs no projection."""
        return Reply(update, personal=personal, log={"drift": update.dual.norm(dim=1)})

    def at(self, dual: Tensor, server: Dual, k: int) -> Tensor:
        """Return the points ``[..., d]`` of dual states ``[..., d]`` after k local steps of the round."""
        return self.regularizer.from_dual(dual, self.lr * (self.lr_server * server.steps + k))
