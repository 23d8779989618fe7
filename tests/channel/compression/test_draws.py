"""Draws depend on the client, the round and the purpose, and on nothing else."""

from __future__ import annotations

from itertools import combinations

import pytest
import torch

from fedlightning.channel.compression import Draws
from tests.support.compression import exchange_of

CPU = torch.device("cpu")


@pytest.mark.parametrize("parts", [[[0, 1, 2, 3]], [[0], [1, 2], [3]], [[3, 2], [1, 0]]])
def test_chunks_and_order_do_not_matter(parts):
    whole = Draws(exchange_of([0, 1, 2, 3]), 4, CPU)
    uniform, subsets = whole.uniform(5, torch.float64), whole.subsets(2, 9)
    for part in parts:
        own = Draws(exchange_of(part), 4, CPU)
        assert torch.equal(own.uniform(5, torch.float64), uniform[part])
        assert torch.equal(own.subsets(2, 9), subsets[part])


def test_clients_rounds_purposes_and_the_server_draw_differently():
    draws = [
        Draws(exchange_of([0, 1]), 0, CPU).uniform(3, torch.float64)[0],
        Draws(exchange_of([0, 1]), 0, CPU).uniform(3, torch.float64)[1],
        Draws(exchange_of([0]), 1, CPU).uniform(3, torch.float64)[0],
        Draws(exchange_of([0], 1), 0, CPU).uniform(3, torch.float64)[0],
        Draws(exchange_of([]), 0, CPU).uniform(3, torch.float64)[0],
    ]
    assert all(not torch.equal(one, other) for one, other in combinations(draws, 2))


def test_every_subset_is_as_likely():
    counts = dict.fromkeys(combinations(range(5), 2), 0)
    for subset in Draws(exchange_of(range(10_000), num_clients=10_000), 0, CPU).subsets(2, 5).tolist():
        counts[tuple(sorted(subset))] += 1
    chi2 = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert sum(counts.values()) == 10_000
    assert chi2 < 27.9  # 99.9 % of a chi-squared distribution with 9 degrees of freedom
