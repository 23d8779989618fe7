"""FedSkip (Fan, Wang, Yao, Lyu, Zhang, Tian, ICDM 2022): local models travel between clients before they are averaged.

Client:  K times w <- w - lr * g_i(w),  from the model it was given;  upload w
Server:  in every period-th round z <- mean(w), given to all
         otherwise each w is handed on to another client of the cohort, at random

A model thus meets the data of several clients between two means. The permutation is a pure function of the seed and
the round. A client's row holds the model it was handed, with the round it dates from; it counts unless there has been a
mean since, so a client that was not in the last cohorts starts from the newest thing it was given. Rows belong to the
client here as everywhere, but are filled by ``Phase.route``, the server's part in this method.

period = 1 is FedAvg. Like it, it is not exact on heterogeneous clients. With a max block it is the same on operators;
nothing is proven there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.algorithms.base import LocalGradientAlgorithm, Phase, Point, Reply
from fedlightning.oracle.cohort import CohortOracle
from fedlightning.ranges import require
from fedlightning.seeding import derive_seed


@dataclass(frozen=True)
class Server:
    """Server state and download.

    Attributes:
        z: The point, the last mean, ``[d]``.
        t: Round, from 0.
    """

    z: Tensor
    t: int


@dataclass(frozen=True)
class Client:
    """Client state.

    Attributes:
        w: The model it was handed, ``[d]``.
        t: Rounds there had been when it was, a scalar.
    """

    w: Tensor
    t: Tensor


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

    period: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "period", at_least=1)
        require(self, "seed")

    @property
    def phases(self) -> tuple[Phase, ...]:
        """One exchange, after which models change hands."""
        return (Phase(self.down, self.client, self.server, route=self.route),)

    def init_server(self, z: Tensor) -> Server:
        """The point and the round."""
        return Server(z, 0)

    def init_client(self, z: Tensor) -> Client:
        """The start."""
        return Client(z, z.new_zeros(()))

    def down(self, server: Server) -> Server:
        """The point and the round; a client that was handed a model gets that instead, as many floats."""
        return server

    def client(self, down: Server, rows: Client, oracle: CohortOracle) -> Reply:
        """K local steps from the model the client was given last."""
        last_mean = down.t - down.t % self.period
        start = torch.where((rows.t > last_mean)[:, None], rows.w, down.z)
        w = self.local_steps(start, oracle)
        return Reply(Point(w), Client(w, torch.full_like(rows.t, down.t + 1)), point=w)

    def server(self, server: Server, up: Point) -> Server:
        """The mean at the end of a period."""
        t = server.t + 1
        return Server(up.z if t % self.period == 0 else server.z, t)

    def route(self, server: Server, ids: list[int]) -> list[int]:
        """Whom each model goes to: a random permutation of the cohort."""
        ordered = sorted(ids)
        shuffled = random.Random(derive_seed(self.seed, server.t)).sample(ordered, len(ordered))
        recipient = dict(zip(ordered, shuffled, strict=True))
        return [recipient[client] for client in ids]
