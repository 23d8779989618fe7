"""Seeds are functions of their parts."""

from __future__ import annotations

import torch

from fedlightning.core.seeding import derive_seed, seed_device


def test_seeds_are_functions_of_their_parts_and_differ():
    seeds = {derive_seed(*parts) for parts in ((0,), (0, 0), (0, 1), (1, 0), (1,), (0, 0, 0), (-1,))}
    assert len(seeds) == 7
    assert derive_seed(3, 4) == derive_seed(3, 4)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_golden_value_of_splitmix64():
    # SplitMix64 from state 0 first yields 0xE220A8397B1DCDAF (reference implementation by S. Vigna)
    assert derive_seed(0) == 0xE220A8397B1DCDAF >> 1


def test_bits_of_neighbouring_seeds_are_unrelated():
    flips = [bin(derive_seed(0, i) ^ derive_seed(0, i + 1)).count("1") for i in range(1000)]
    assert 29 < sum(flips) / 1000 < 34


def test_seed_device_equals_manual_seed():
    torch.manual_seed(7)
    expected = torch.randn(3)
    seed_device(torch.device("cpu"), 7)
    assert torch.equal(torch.randn(3), expected)
