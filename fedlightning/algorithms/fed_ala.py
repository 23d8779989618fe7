"""FedALA (Zhang et al., AAAI 2023, Algorithm 1): personal models by adaptive local aggregation.

Client:   w   = v_i + a_i * (z - v_i),  elementwise, a_i in [0, 1]                          where local training starts
          a_i <- clip(a_i - lr_weights * g_i(w) * (z - v_i), 0, 1),  recomputing w          on the round's minibatches
          v_i <- v_i' after K steps  v' <- v' - lr * g_i(v'),  from v' = w
Server:   z   <- mean(v_i)

v_i is the client's own model, a_i how much of the received one it takes over, parameter by parameter. a_i starts at one
and stays there in a client's first round, which so starts at z. In its second a_i goes through the minibatches
``first_passes`` times, where the paper trains it to convergence once; later, once a round. ``adaptive`` says where the
clients choose: the paper adapts the upper layers only and takes the lower ones as received.

With a max block both updates use the operator: a_i of an ascent parameter then climbs like the parameter itself.

Symbols: Theta -> z; Theta_i -> v; W_i -> a; alpha -> lr; eta -> lr_weights; p -> adaptive, 1 on the upper layers; s ->
the minibatches of the round.

Departures: in its second round a client takes ``first_passes`` passes, where the paper goes on to convergence; a_i is
learnt on the minibatches of the round, where the paper draws s % of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedlightning.algorithms.base import Point, Reply, per_block
from fedlightning.algorithms.fed_avg import FedAvg
from fedlightning.core.parameter_space import PerBlock
from fedlightning.core.schedule import PerRound
from fedlightning.core.validation import require, require_step_size
from fedlightning.oracle.gradient import GradientOracle


@dataclass(frozen=True)
class Client:
    """Holds the state of a client between rounds.

    Attributes:
        v: The client's model after its last round, ``[d]`` for one client, ``[S, d]`` for a cohort.
        a: Share of the received model in the next start, likewise.
        rounds: Rounds it took part in, ``[]`` for one client, ``[S]`` for a cohort.
    """

    v: Tensor
    a: Tensor
    rounds: Tensor


@dataclass(frozen=True, eq=False)
class FedALA(FedAvg):
    """Averages personal models, each started between the client's last model and the received one.

    Args:
        lr: Local step size eta > 0: one number, ``[min, max]`` or by name prefix.
        lr_weights: Step size > 0 of the shares a_i.
        first_passes: Passes over the minibatches with which a client first learns its shares, in its second round.
        adaptive: 1 where the client chooses its share, 0 where it takes the received model: one number,
            ``[min, max]`` or by name prefix.
        local_optimizer: Elementwise torch optimizer for the local steps in place of plain gradient steps.
    """

    state_depends_on = ("adaptive",)

    lr_weights: PerRound = 1.0
    first_passes: int = 5
    adaptive: PerBlock = per_block(
        1.0, constant="clients would keep shares that they learned where they may not choose any more"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_step_size(self, "lr_weights")
        require(self, "first_passes", at_least=1)
        require(self, "adaptive", at_least=0.0, at_most=1.0)

    def init_client(self, z: Tensor) -> Client:
        """Start at the point, with shares of one that take over all of the next model."""
        return Client(z, torch.ones_like(z), z.new_zeros(()))

    def client_update(self, message: Point, state: Client, oracle: GradientOracle) -> Reply:
        """Learn the shares of the received model, then take K local steps."""
        gap = message.z - state.v
        a = self._shares(state, gap, oracle)
        start = state.v + a * gap
        w, v = self.local_steps(start, oracle)
        log = {"own_distance": (w - message.z).norm(dim=1), "share": self._mean_share(a)}
        return Reply(Point(w), Client(w, a, state.rounds + 1), personal=v, point=w, log=log)

    def carried_over(self, server: Point, before: FedALA, clients: Client | None) -> Point | None:
        """Return the state as it is, or None if clients keep learned shares where learning is now switched off."""
        chooses, chose = (torch.as_tensor(each.adaptive) > 0 for each in (self, before))
        return server if bool((chooses | ~chose).all()) else None

    def _shares(self, state: Client, gap: Tensor, oracle: GradientOracle) -> Tensor:
        a = state.a
        passes = torch.where(state.rounds == 0, 0, torch.where(state.rounds == 1, self.first_passes, 1))
        for number in range(int(passes.max())):
            for batch in oracle.batches():
                g = oracle.at_reference(state.v + a * gap, batch)
                moved = (a - self.lr_weights * self.adaptive * g * gap).clamp(0, 1)
                a = batch.keep(torch.where((passes > number)[:, None], moved, a), a)
        return a

    def _mean_share(self, a: Tensor) -> Tensor:
        """Return the mean share over the parameters where clients choose."""
        chooses = (torch.as_tensor(self.adaptive, device=a.device) > 0).expand(a.shape[1])
        return (a * chooses).sum(dim=1) / chooses.sum().clamp(min=1)

    def personal_model(self, state: Client) -> Tensor:
        """Return the personal models."""
        return state.v
