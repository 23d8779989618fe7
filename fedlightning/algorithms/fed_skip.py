"""FedSkip (Fan, Wang, Yao, Lyu, Zhang, Tian, ICDM 2022): local models travel between clients before they are averaged.

Client:  K times w <- w - lr * g_i(w),  from the model it was given;  upload w
Server:  in every period-th round z <- mean(w), given to all
         otherwise each w is handed on to a client of the cohort, by a random permutation

A model thus meets the data of several clients between two means; the permutation may leave some where they are. It is
a pure function of the seed and the round. The server keeps the models it has to hand on, and a client receives its own
alone: a client that was not in the last cohorts starts from the newest model it was given since the last mean, or from
that mean.

period = 1 is FedAvg. Like it, it is not exact on heterogeneous clients. With a max block it is the same on operators;
nothing is proven there.

Symbols: w -> z; eta -> lr; Delta -> period; E -> local_epochs of the data.

Departures: what absent clients start from, as above.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedlightning.algorithms.base import LocalGradientAlgorithm, PerClient, Reply, from_each_client, of_any_length
from fedlightning.core.seeding import derive_seed
from fedlightning.core.validation import require
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Server:
    """Holds the server's state between rounds.

    Attributes:
        z: The point, the last mean, ``[d]``.
        t: Round, from 0.
        clients: Ids of the M clients that were given a model since, ``[M]``.
        models: These models, ``[M, d]``.
    """

    z: Tensor
    t: int
    clients: Tensor = of_any_length()
    models: Tensor = of_any_length()


@dataclass(frozen=True)
class Message:
    """Holds the message from the server to the clients.

    Attributes:
        start: Where the client starts, ``[d]``; ``[S, d]`` as the clients of a cohort see it.
    """

    start: Any


@dataclass(frozen=True)
class Upload:
    """Holds the upload of a client.

    Attributes:
        w: Its model, ``[S, d]``; the server receives every client's own.
    """

    w: Any = from_each_client(relative_to="start")


@dataclass(frozen=True, eq=False)
class FedSkip(LocalGradientAlgorithm):
    """Runs federated averaging that skips most means.

    Args:
        lr: Local step size eta > 0: one number, ``[min, max]`` or by name prefix.
        period: Rounds from one mean to the next, at least 1.
        seed: Seed of the permutations.
        local_optimizer: Elementwise torch optimizer for the local steps in place of plain gradient steps.
    """

    primal = False
    server_knows_clients = True

    period: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "period", at_least=1)
        require(self, "seed")

    def init_server(self, z: Tensor) -> Server:
        """Start all clients at the point."""
        return self.after_mean(z, 0)

    def broadcast(self, server: Server) -> Message:
        """Send each client its own starting model."""
        return Message(PerClient(server.z, server.clients, server.models))

    def client_update(self, message: Message, state: Any, oracle: GradientOracle) -> Reply:
        """Take K local steps from the model that the client received last."""
        w, v = self.local_steps(message.start, oracle)
        return Reply(Upload(w), personal=v, point=w)

    def server_update(self, server: Server, update: Upload) -> Server:
        """Average the models at the end of a period, and otherwise hand them on by a random permutation."""
        t = server.t + 1
        if t % self.period == 0:
            return self.after_mean(update.w.default, t)
        recipients = self.shuffled(update.w.client_ids, server.t)
        keep = ~torch.isin(server.clients, recipients)
        clients = torch.cat([server.clients[keep], recipients])
        return Server(server.z, t, clients, torch.cat([server.models[keep], update.w.values]))

    def after_mean(self, z: Tensor, t: int) -> Server:
        """Start all clients from the mean."""
        return Server(z, t, torch.empty(0, dtype=torch.long, device=z.device), z.new_empty((0, len(z))))

    def shuffled(self, clients: Tensor, t: int) -> Tensor:
        """Draw the recipient of each client's model in round t."""
        ordered = sorted(clients.tolist())
        shuffled = random.Random(derive_seed(self.seed, t)).sample(ordered, len(ordered))
        recipient = dict(zip(ordered, shuffled, strict=True))
        return torch.tensor([recipient[client] for client in clients.tolist()], device=clients.device)
