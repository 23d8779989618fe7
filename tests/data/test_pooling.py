"""Joining the data sets of clients."""

from __future__ import annotations

import torch
from torch.utils.data import ConcatDataset, TensorDataset

from fedlightning.data import MixedTensorData, TensorData
from fedlightning.data.pooling import pool
from tests.support.with_gaps import Listed


def numbered(num_samples, width, first):
    """Samples of some width, labelled from ``first`` on."""
    return TensorDataset(torch.zeros(num_samples, width), torch.arange(first, first + num_samples))


def labels(pooled, partition):
    return [[int(pooled[int(position)][1]) for position in part] for part in partition]


GIVEN = [numbered(2, 3, 0), None, numbered(0, 3, 0), numbered(3, 3, 20)]
HELD = [[0, 1], [], [], [20, 21, 22]]


def test_tensors_become_one_tensor():
    pooled, partition = pool(GIVEN)
    assert isinstance(pooled, TensorData)
    assert [tuple(leaf.shape) for leaf in pooled.tensors] == [(5, 3), (5,)]
    assert labels(pooled, partition) == HELD


def test_other_data_sets_keep_loading_their_samples():
    pooled, partition = pool([None if each is None else Listed(each) for each in GIVEN])
    assert isinstance(pooled, ConcatDataset)
    assert labels(pooled, partition) == HELD
    pooled, partition = pool([*GIVEN, Listed(numbered(1, 3, 40))])  # one such client is enough
    assert isinstance(pooled, ConcatDataset)
    assert labels(pooled, partition) == [*HELD, [40]]


def test_transforms_stay_with_their_clients():
    moved = [TensorData(each.tensors, lambda item: (item[0], item[1] + 100)) for each in (GIVEN[0], GIVEN[3])]
    pooled, partition = pool(moved)
    assert isinstance(pooled, ConcatDataset)
    assert labels(pooled, partition) == [[100, 101], [120, 121, 122]]


def test_clients_of_one_shape_stand_together():
    pooled, partition = pool([numbered(2, 3, 0), numbered(1, 2, 10), numbered(1, 3, 20), numbered(2, 2, 30)])
    assert isinstance(pooled, MixedTensorData)
    assert [len(part) for part in pooled.parts] == [3, 3]
    assert labels(pooled, partition) == [[0, 1], [10], [20], [30, 31]]
    assert [part.tolist() for part in partition] == [[0, 1], [3], [2], [4, 5]]
