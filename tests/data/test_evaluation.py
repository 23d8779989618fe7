"""Evaluation data in batches, pooled and client by client."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlightning.data import ClientLoader, MixedTensorData, Partition, TensorData
from fedlightning.data.evaluation import PooledLoader, dtype_of, pooled_loader
from tests.support.with_gaps import Listed

NUMBERS = TensorDataset(torch.arange(10))
PARTITION = Partition.of([[5, 6, 7], [], [0, 1], [8]], allow_empty=True)


@pytest.mark.parametrize("wrap", [lambda data: data, Listed], ids=["tensors", "listed"])
def test_pooled_samples_come_in_their_order(wrap):
    loader = pooled_loader(wrap(NUMBERS), batch_size=4, num_workers=0)
    assert isinstance(loader, PooledLoader)
    assert [batch.tolist() for (batch,) in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3


@pytest.mark.parametrize("wrap", [lambda data: data, Listed], ids=["tensors", "listed"])
def test_clients_come_one_by_one_in_parts(wrap):
    loader = ClientLoader(wrap(NUMBERS), PARTITION, batch_size=2, models=("own", "global"), clients=[0, 1, 3])
    assert not loader.grouped
    assert loader.num_clients == 4
    parts = [(part.client, part.model, part.last) for (part,) in loader.batches]
    large = [(0, "own", False), (0, "own", True), (0, "global", False), (0, "global", True)]
    assert parts == [*large, (3, "own", True), (3, "global", True)]
    assert [batch.tolist() for (batch,) in loader] == [[5, 6], [7]] * 2 + [[8]] * 2


def test_clients_side_by_side_share_architecture_and_shape():
    shapes = MixedTensorData([TensorData(torch.zeros(5, 1)), TensorData(torch.zeros(5, 2))])
    partition = Partition.of(torch.arange(10).split([2, 2, 1, 2, 1, 2]))  # three clients of each shape
    loader = ClientLoader(shapes, partition, 8, at_once=4, architecture=lambda client: "own" if client == 1 else "")
    together = [[part.client for part in parts] for parts in loader.batches]
    assert together == [[0, 2], [1], [3, 5, 4]]
    assert [tuple(batch.shape) for batch in loader] == [(2, 2, 1), (1, 2, 1), (3, 2, 2)]


def test_clients_of_like_size_stand_together():
    sizes = [3, 9, 4, 30, 8]
    partition = Partition.of(torch.arange(sum(sizes)).split(sizes))
    data = TensorData((torch.arange(sum(sizes)),))
    loader = ClientLoader(data, partition, batch_size=20, models=("own", "global"), at_once=3)
    batches = [[(part.model, part.client) for part in parts] for parts in loader.batches]
    assert batches == [
        [("own", 1), ("own", 4)],
        [("own", 2), ("own", 0)],
        [("global", 1), ("global", 4)],
        [("global", 2), ("global", 0)],
        [("own", 3)],
        [("own", 3)],
        [("global", 3)],
        [("global", 3)],
    ]
    for parts, (batch,) in zip(loader.batches, loader, strict=True):
        assert batch.shape[0] == len(parts)
        for row, part in zip(batch, parts, strict=True):
            assert torch.equal(row[: len(part.index)], part.index)
            assert (row[len(part.index) :] == part.index[-1]).all()


@pytest.mark.parametrize("wrap", [lambda data: data, Listed], ids=["tensors", "listed"])
def test_real_numbers_come_in_the_dtype_asked_for_and_others_as_they_are(wrap):
    leaves = torch.randn(10, 2).double(), torch.arange(10), torch.arange(10) > 4
    data = wrap(TensorDataset(*leaves))
    together = [ClientLoader(data, PARTITION, 8, at_once=2, dtype=torch.float32)] if wrap is not Listed else []
    loaders = [pooled_loader(data, 4, 0, torch.float32), ClientLoader(data, PARTITION, 2, dtype=torch.float32)]
    for loader in loaders + together:
        assert {tuple(leaf.dtype for leaf in batch) for batch in loader} == {(torch.float32, torch.int64, torch.bool)}
    kept = torch.cat([x for x, _, _ in pooled_loader(data, 4, 0)])
    assert torch.equal(kept, leaves[0])


def test_trained_parameters_decide_on_the_dtype():
    frozen, trained = nn.Linear(1, 1).requires_grad_(False), nn.Linear(1, 1).double()
    assert dtype_of(nn.Sequential(frozen, trained)) == torch.float64
    assert dtype_of(frozen) == torch.float32
    assert dtype_of(nn.ReLU()) is None
