"""Adversaries replace their own rows, wherever these lie."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from fedlightning.channel import ALIE, Attack, GaussianAttack, InnerProductManipulation, SignFlip
from fedlightning.core.some_clients import SomeClients
from tests.support.exchanges import exchange
from tests.support.peers import played
from tests.support.rules import drawn

IDS = [4, 0, 17, 9, 11, 2, 8, 5]
ATTACKS = {
    "sign flip": SignFlip(clients=[9, 0, 5]),
    "noise": GaussianAttack(clients=[9, 0, 5]),
    "ALIE": ALIE(clients=[9, 0, 5]),
    "IPM": InnerProductManipulation(clients=[9, 0, 5]),
}
over_attacks = pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)


@dataclass(frozen=True, kw_only=True)
class Loud(SomeClients, Attack):
    """Sends one number."""

    number: float = 7.0

    def forge(self, own, client_ids, honest, exchange, purpose):
        assert len(own) == len(client_ids)
        return torch.full_like(own, self.number, dtype=torch.float64)


@over_attacks
def test_only_rows_of_adversaries_change_and_in_copies(attack):
    values = drawn(8)
    parts = [values[:3], values[3:3], values[3:]]
    sent = torch.cat(attack.act(parts, IDS, exchange(), 0))
    changed = (sent != drawn(8)).any(dim=1)
    assert [client for client, has in zip(IDS, changed.tolist(), strict=True) if has] == [0, 9, 5]
    assert torch.equal(values, drawn(8))


@over_attacks
def test_chunks_and_order_change_nothing(attack):
    values, order = drawn(8), torch.tensor([5, 2, 7, 0, 1, 6, 4, 3])
    sent = torch.cat(attack.act([values], IDS, exchange(), 0))
    ids = [IDS[place] for place in order]
    again = torch.cat(attack.act([values[order[:1]], values[order[1:6]], values[order[6:]]], ids, exchange(), 0))
    torch.testing.assert_close(again, sent[order], rtol=1e-13, atol=1e-14)


@over_attacks
@pytest.mark.parametrize("count", [2, 3, 9])  # of nine processes, one has no client
def test_processes_send_what_one_sends(attack, count):
    values = drawn(8)
    sent = torch.cat(attack.act([values], IDS, exchange(), 0))

    def run(processes):
        mine = list(range(processes.rank, 8, count))
        return mine, torch.cat(attack.act([values[mine]], [IDS[place] for place in mine], exchange(), 0, processes))

    for mine, own in played(count, run):
        torch.testing.assert_close(own, sent[mine], rtol=1e-13, atol=1e-14)


@over_attacks
def test_cohorts_without_adversaries_stay(attack):
    parts = [drawn(2)]
    assert attack.act(parts, [1, 2], exchange(), 0)[0] is parts[0]


@over_attacks
def test_cohorts_of_adversaries_alone_have_numbers(attack):
    sent = attack.act([drawn(2)], [0, 9], exchange(), 0)[0]
    assert sent.isfinite().all()
    if isinstance(attack, ALIE | InnerProductManipulation):
        assert torch.equal(sent, drawn(2))


def test_a_share_is_drawn_of_all_clients():
    attack = Loud(share=0.25, seed=3)
    chosen = attack.among(20)
    assert len(chosen) == 5
    sent = attack.act([torch.zeros(20, 2)], range(20), exchange(cohort=20), 0)[0]
    assert {client for client in range(20) if sent[client, 0]} == chosen


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_sent_is_a_number_of_the_dtype(dtype):
    sent = Loud(clients=[0], number=1e300).act([torch.zeros(2, 3, dtype=dtype)], [0, 1], exchange(), 0)[0]
    assert sent.dtype == dtype
    assert sent[0].tolist() == [torch.finfo(dtype).max] * 3


def test_adversaries_are_clients_of_the_federation():
    with pytest.raises(ValueError, match=r"Loud\(clients=.*20 clients, 0 to 19, and none with the id 20"):
        Loud(clients=[20]).act([drawn(1)], [0], exchange(), 0)
