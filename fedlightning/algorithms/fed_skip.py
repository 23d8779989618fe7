"""FedSkip (Fan, Wang, Yao, Lyu, Zhang, Tian, ICDM 2022): local models travel between clients before they are averaged.

Client:  K times w <- w - lr * g_i(w),  from the model it was given;  upload w
Server:  in every period-th round z <- mean(w), given to all
         otherwise each w is handed on to another client of the cohort, at random

A model thus meets the data of several clients between two means. The permutation is a pure function of the seed and
the round. The server keeps the models it has to hand on, and a client receives its own alone: a client that was not in
the last cohorts starts from the newest model it was given since the last mean, or from that mean.

period = 1 is FedAvg. Like it, it is not exact on heterogeneous clients. With a max block it is the same on operators;
nothing is proven there.
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
    """Server state.

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
    """A download.

    Attributes:
        start: Where the client starts, ``[d]``; ``[S, d]`` as the clients of a cohort see it.
    """

    start: Any


@dataclass(frozen=True)
class Upload:
    """What a client sends.

    Attributes:
        w: Its model, ``[S, d]``; the server receives every client's own.
    """

    w: Any = from_each_client()


@dataclass(frozen=True, eq=False)
class FedSkip(LocalGradientAlgorithm):
    """Federated averaging that skips most means.

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
        """All clients start at the point."""
        return self.after_mean(z, 0)

    def broadcast(self, server: Server) -> Message:
        """Every client's own start."""
        return Message(PerClient(server.z, server.clients, server.models))

    def client_update(self, message: Message, state: Any, oracle: GradientOracle) -> Reply:
        """K local steps from the model the client was given last."""
        w, v = self.local_steps(message.start, oracle)
        return Reply(Upload(w), personal=v, point=w)

    def server_update(self, server: Server, update: Upload) -> Server:
        """The mean at the end of a period, else every model to another client of the cohort."""
        t = server.t + 1
        if t % self.period == 0:
            return self.after_mean(update.w.default, t)
        recipients = self.shuffled(update.w.clients, server.t)
        keep = ~torch.isin(server.clients, recipients)
        clients = torch.cat([server.clients[keep], recipients])
        return Server(server.z, t, clients, torch.cat([server.models[keep], update.w.values]))

    def after_mean(self, z: Tensor, t: int) -> Server:
        """All clients start from the mean."""
        return Server(z, t, torch.empty(0, dtype=torch.long, device=z.device), z.new_empty((0, len(z))))

    def shuffled(self, clients: Tensor, t: int) -> Tensor:
        """Whom each client's model goes to in round t: a random permutation of the cohort."""
        ordered = sorted(clients.tolist())
        shuffled = random.Random(derive_seed(self.seed, t)).sample(ordered, len(ordered))
        recipient = dict(zip(ordered, shuffled, strict=True))
        return torch.tensor([recipient[client] for client in clients.tolist()], device=clients.device)
