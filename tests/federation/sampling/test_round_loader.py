"""Rounds as the train loader yields them."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

from fedlightning import FederatedDataModule
from fedlightning.data import RoundLoader
from tests.support.four_clients import SIZES, federation


def test_tensor_datasets_of_pairs():
    data = FederatedDataModule.from_datasets([TensorDataset(torch.zeros(3, 2), torch.ones(3))], batch_size=2)
    batch = next(iter(RoundLoader(data)))
    minibatch = next(next(batch.cohorts[0].chunks(1)).minibatches())
    assert [t.shape for t in minibatch.data] == [(1, 2, 2), (1, 2)]


def test_an_epoch_begins_at_the_round_that_is_asked_for():
    at = iter([0, 3])
    loader = RoundLoader(federation(), start=lambda: next(at))
    assert len(loader) == 3
    first, second = ([batch.index for batch in loader] for _ in range(2))
    assert (first, second) == ([0, 1, 2], [3, 4, 5])
    assert loader.state_dict() == {}


def test_a_round_does_not_depend_on_where_the_epoch_began():
    whole = list(RoundLoader(federation(rounds_per_epoch=6)))
    batch = next(iter(RoundLoader(federation(), start=lambda: 4)))
    assert batch.index == 4
    then, now = ([(each.id, each.index.tolist()) for each in one.cohorts[0].members] for one in (whole[4], batch))
    assert then == now


def test_a_round_knows_all_clients_numbers_of_samples():
    batch = next(iter(RoundLoader(federation(), rank=1, world_size=2)))
    assert batch.samples.tolist() == SIZES
    assert len(batch.cohorts[0]) == 2
