"""Drawing one client's minibatches."""

from __future__ import annotations

from itertools import product

import torch

from fedlightning.federation.sampling.minibatches import client_seed, draw_minibatches, repeat_last


def test_an_epoch_meets_every_sample_once():
    index = draw_minibatches(torch.arange(100, 130), batch_size=10, steps=3, seed=4)
    assert index.shape == (3, 10)
    assert index.flatten().sort().values.tolist() == list(range(100, 130))


def test_epochs_reshuffle_and_short_minibatches_are_filled():
    index = draw_minibatches(torch.arange(7), batch_size=3, steps=5, seed=4)
    assert index.shape == (5, 3)
    flat = index.flatten()
    assert flat[:7].sort().values.tolist() == flat[7:14].sort().values.tolist() == list(range(7))
    assert flat[:7].tolist() != flat[7:14].tolist()


def test_steps_and_full_batches():
    assert draw_minibatches(torch.arange(7), 3, steps=9, seed=0).shape == (9, 3)
    assert draw_minibatches(torch.arange(7), None, steps=2, seed=0).tolist() == [list(range(7))] * 2
    assert draw_minibatches(torch.arange(7), None, steps=3, seed=0).shape == (3, 7)
    tiny = draw_minibatches(torch.arange(2), 4, steps=1, seed=0)
    assert tiny.flatten().bincount().tolist() == [2, 2]


def test_every_client_phase_and_round_has_a_seed_of_its_own():
    seeds = {client_seed(7, *place) for place in product((0, 1), repeat=3)}
    assert len(seeds) == 8
    assert client_seed(7, 0, 0, 0) == client_seed(7, 0, 0, 0) != client_seed(8, 0, 0, 0)


def test_the_last_entry_fills_up():
    tensor = torch.tensor([[1, 2], [3, 4]])
    assert repeat_last(tensor, 4).tolist() == [[1, 2], [3, 4], [3, 4], [3, 4]]
    assert repeat_last(tensor, 2) is tensor
