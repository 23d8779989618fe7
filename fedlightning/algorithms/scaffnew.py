"""Scaffnew (Mishchenko, Malinovsky, Stich, Richtarik, ICML 2022, Algorithm 2): ProxSkip in federated form.

Client:  w <- w - lr * (g_i(w) - h_i),  from w = z, until a coin of probability p falls, the same one for all clients
         h_i <- h_i + chi * p / lr * (z' - w),  once it knows the next point z'
Server:  z' <- mean(w)

The paper writes one loop over steps, in which a coin says whether a step is followed by a mean; a round here is what
lies between two means. h_i follows the client's operator at the solution. What the cohort adds to its h_i sums to zero,
so the h_i of all clients have the mean zero at all times. At a fixed point w = z, so h_i = g_i(z): the exact solution.
For f_i of condition number k the rate is that of 1/sqrt(k) communications a digit with p = 1/sqrt(k).

The paper's clients all take part. With some of them a round these are the lines of TAMUNA (Condat, Agarsky, Malinovsky,
Richtarik, 2023, Algorithm 1) without compression: cohorts are drawn uniformly, absent clients keep their h_i, and
chi is at most n (s - 1) / (s (n - 1)) for s >= 2 of n clients, which is above 1/2 and is 1 if all take part. With one
client a round the mean is the client's own point, all h_i stay zero, and the method has the drift of FedAvg.

A client learns of z' when it is next asked: the server keeps the move z' - z of each client's last round, times chi * p
/ lr, and sends it along. So lr may vary by round, and the means stay zero. Proven for strongly convex smooth f_i and lr
up to 1/L; nothing is proven with a max block, where these are the same lines on operators.

Symbols: x_t -> z; x_{i,t} -> w; h_{i,t} -> h; gamma -> lr; p -> p; eta of TAMUNA -> chi * p.

Departures: TAMUNA's partial cohorts, in which alone chi differs from 1; it sends z' at the end of a round, here it goes
with the next request. Where a client's minibatches are fewer than the steps of a round, it meets them again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import (
    Algorithm,
    PerClient,
    Reply,
    from_each_client,
    of_any_length,
    per_block,
    relative_to,
)
from fedlightning.algorithms.scaffold import DIVIDES
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import constant
from fedlightning.core.validation import require
from fedlightning.local.random_length import cycled, steps_until_heads
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state between rounds.

    Attributes:
        z: The point, ``[d]``.
        t: Round, from 0.
        clients: Ids of the M clients that have taken part, ascending, ``[M]``.
        moves: What their h_i still lack, chi * p / lr times the move of the point in their last round, ``[M, d]``.
    """

    z: Tensor
    t: int
    clients: Tensor = of_any_length()
    moves: Tensor = of_any_length()


@dataclass(frozen=True)
class Message:
    """Holds the message from the server to the clients.

    Attributes:
        z: The point, ``[d]``.
        t: Round, which decides the number of local steps.
        lacking: What a client's h_i lacks since its last round, ``[d]``; ``[S, d]`` as the clients of a cohort see it.
    """

    z: Tensor
    t: int
    lacking: Any


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        h: Control variate h_i without what it lacks, ``[d]`` for one client, ``[S, d]`` for a cohort.
    """

    h: Tensor


@dataclass(frozen=True)
class Upload:
    """Holds the upload of a client.

    Attributes:
        z: Local point w, ``[S, d]``; the server receives its mean over the cohort.
        who: Zeros, ``[S]``; they come from each client, and so tell the server whose answers count.
    """

    z: Tensor = relative_to("z")
    who: Any = from_each_client(relative_to="")


@dataclass(frozen=True, eq=False)
class Scaffnew(Algorithm):
    """Runs local steps corrected by control variates, with communication after a random number of them.

    The number of local steps of the data module is not used.

    Args:
        lr: Local step size gamma > 0: one number, ``[min, max]`` or by name prefix.
        p: Probability 0 < p <= 1 to communicate after a local step: 1/K for K steps a round on average.
        chi: Share 0 < chi <= 1 of the paper's step of the control variates; with s >= 2 of n clients a round at most
            ``n * (s - 1) / (s * (n - 1))``, which the algorithm cannot check, as it is not told n.
        seed: Of the coin.
    """

    server_knows_clients = True
    needs_exact_uploads = True  # the h_i have the mean zero if the point is the mean of just the w that moved them

    lr: PerBlock = per_block()
    p: float = constant("it decides how many local steps a round has", 0.1)
    chi: float = constant("it belongs to the size of the cohorts", 1.0)
    seed: int = 0

    def __post_init__(self) -> None:
        require(self, "lr", above=0.0, because=DIVIDES)
        require(self, "p", "chi", above=0.0, at_most=1.0)
        require(self, "seed")

    @property
    def accumulates(self) -> bool:
        """Return True, because the control variates have the mean zero under constant weights alone."""
        return True

    def init_server(self, z: Tensor) -> Server:
        """Start at the point, with no client that lacks anything."""
        return Server(z, 0, torch.empty(0, dtype=torch.long, device=z.device), z.new_empty((0, len(z))))

    def init_client(self, z: Tensor) -> Client:
        """Start with the control variate at zero."""
        return Client(torch.zeros_like(z))

    def broadcast(self, server: Server) -> Message:
        """Send the point and, to each client, what its control variate lacks."""
        return Message(server.z, server.t, PerClient(torch.zeros_like(server.z), server.clients, server.moves))

    def client_update(self, message: Message, state: Client, oracle: GradientOracle) -> Reply:
        """Complete the control variate, and take corrected local steps until the coin falls."""
        z = w = message.z.expand(oracle.num_clients, -1)
        h, v = state.h + message.lacking, oracle.personal
        for batch in cycled(oracle, self.steps_of(message.t)):
            g, v = oracle.step_personal(w, v, batch, self.personal_lr)
            w = w - self.lr * (g - h)
        upload = Upload(w, w.new_zeros(len(w)))
        new = Client(h + self.chi * self.p / self.lr * (z - w))
        return Reply(upload, new, personal=v, point=w, log={"dual_norm": h.norm(dim=1)})

    def server_update(self, server: Server, update: Upload) -> Server:
        """Move to the mean of the local points, and note for whom it was the last move."""
        ids = update.who.client_ids
        move = self.chi * self.p / self.lr * (update.z - server.z)
        keep = ~torch.isin(server.clients, ids)
        moves = torch.cat([server.moves[keep], move.expand(len(ids), -1)])
        clients, order = torch.cat([server.clients[keep], ids]).sort()
        return Server(update.z, server.t + 1, clients, moves[order])

    def steps_of(self, t: int) -> int:
        """Return the number of local steps in round t."""
        return steps_until_heads(self.p, self.seed, t)
