"""Local SGDA+ (Deng, Mahdavi, AISTATS 2021, Algorithm 2): ascent at a snapshot of the min block.

Client, K times:  x <- x - lr * grad_x f_i(x, y)
                  y <- y + lr * grad_y f_i(x_snapshot, y),  from (x, y) = z
Server:           z <- mean of (x, y);  every ``refresh`` rounds  x_snapshot <- x

Both gradients use the same minibatch. Without a max block it is FedAvg. For nonconvex-concave problems the slowly
moving snapshot keeps the inner maximisation stable.

Symbols: x, y -> z, its min and its max block; eta, gamma -> lr, a pair; x_tilde -> snapshot; S -> refresh, in rounds; K
-> local_steps of the data.

Departures: the snapshot is taken after whole rounds; any cohort may take part, as Xie et al. (CDMA, AAAI 2023) run it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import Algorithm, Point, Reply, per_block
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.validation import require, require_step_size
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state, which is also the message to the clients.

    Attributes:
        z: The point, ``[d]``.
        snapshot: Min block at which y's gradient is taken, ``[min_dim]``.
        t: Round, from 0.
    """

    z: Tensor
    snapshot: Tensor
    t: int


@dataclass(frozen=True, eq=False)
class LocalSGDAPlus(Algorithm):
    """Runs local SGDA with the ascent direction taken at a snapshot.

    Args:
        lr: Local step size > 0: one number, ``[min, max]`` (eta, gamma) or by name prefix.
        refresh: Rounds S >= 1 between snapshots.
    """

    lr: PerBlock = per_block()
    refresh: int = 10

    def __post_init__(self) -> None:
        require_step_size(self, "lr")
        require(self, "refresh", at_least=1)

    def init_server(self, z: Tensor) -> Server:
        """Start at the point, with its min block as the first snapshot."""
        return Server(z, z[: self.min_dim], t=0)

    def broadcast(self, server: Server) -> Server:
        """Send the global point and the snapshot."""
        return server

    def client_update(self, message: Server, state: Any, oracle: GradientOracle) -> Reply:
        """Take K local steps of both blocks."""
        w, v = message.z.expand(oracle.num_clients, -1), oracle.personal
        snapshot = message.snapshot.expand(oracle.num_clients, -1)
        for batch in oracle.batches():
            ascent = oracle.at_reference(torch.cat([snapshot, w[:, self.min_dim :]], dim=1), batch, v)
            g, v = oracle.step_personal(w, v, batch, self.personal_lr)
            g = torch.cat([g[:, : self.min_dim], ascent[:, self.min_dim :]], dim=1)
            w = batch.keep(w - self.lr * g, w)
        return Reply(Point(w), personal=v, point=w)

    def server_update(self, server: Server, update: Point) -> Server:
        """Move to the mean of the local points, and take a new snapshot every ``refresh`` rounds."""
        t = server.t + 1
        return Server(update.z, server.snapshot if t % self.refresh else update.z[: self.min_dim], t)

    def with_point(self, server: Server, z: Tensor) -> Server:
        """Move to ``z``, whose min block also becomes the snapshot if one is taken in this round."""
        return replace(server, z=z, snapshot=server.snapshot if server.t % self.refresh else z[: self.min_dim])
