"""Points that an algorithm gives the oracle are one row a client."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedlightning.algorithms import FedAvg, Reply
from fedlightning.oracle import Sequential, Vectorized
from tests.support.federations import CLIENTS, loop_for, quadratic, rounds_of, run
from tests.support.finite_sums import CLIENTS as S
from tests.support.finite_sums import DIM, Samples, finite_sum, oracle_of


@dataclass(frozen=True)
class Momentum:
    m: torch.Tensor


class StartsAll(FedAvg):
    """Begins with the states of all clients, where those of one are asked for."""

    def init_client(self, z):
        return Momentum(torch.zeros(CLIENTS, len(z), dtype=z.dtype))

    def client_update(self, message, state, oracle):
        w, m = message.z.expand(oracle.num_clients, -1), state.m
        for batch in oracle.batches():
            m = m + oracle(w, batch)
            w = w - 0.05 * m
        return Reply(type(message)(w), state=Momentum(m), point=w)


@pytest.mark.parametrize("oracle", [Sequential(), Vectorized()])
def test_states_of_all_clients_in_the_place_of_one_are_found(oracle):
    together = 1 if isinstance(oracle, Sequential) else CLIENTS
    found = rf"^client_update gives the oracle points of shape \[{together}, {CLIENTS}, \d+\]; expected .* init_client"
    with pytest.raises(ValueError, match=found):
        run(loop_for(quadratic(StartsAll(0.05)), oracle), rounds_of(StartsAll(0.05), 1))


CALLS = {
    "minibatch": lambda oracle, w: oracle(w, next(oracle.batches())),
    "reference": lambda oracle, w: oracle.at_reference(w, next(oracle.batches())),
    "all data": lambda oracle, w: oracle.full(w),
    "reference of all data": lambda oracle, w: oracle.at_reference(w),
}


@pytest.mark.parametrize("shape", [(DIM,), (1, DIM), (S, S, DIM)], ids=str)
@pytest.mark.parametrize("call", CALLS)
def test_points_of_other_shapes_are_refused_by_every_call(call, shape):
    oracle = oracle_of(Samples(finite_sum(), steps=2))
    with pytest.raises(ValueError, match=r"expected \[3, d\], one row for each of the S=3 clients\."):
        CALLS[call](oracle, torch.zeros(shape, dtype=torch.float64))
    assert CALLS[call](oracle, torch.zeros(S, DIM, dtype=torch.float64)).shape == (S, DIM)
