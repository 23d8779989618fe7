"""The data sets of a federation and who holds which samples."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import TensorDataset

from fedlightning.data import Federation, Partition


def test_clients_without_training_samples_are_named():
    train = TensorDataset(torch.zeros(4, 2))
    partition = Partition.of([[0, 1], [], [2, 3], []], allow_empty=True)
    with pytest.raises(ValueError, match=r"2 of 4 clients have no training samples: 1, 3\. Leave such clients out"):
        Federation(train, partition)
    Federation(train, Partition.of([[0, 1], [2, 3]]), val=train, val_partition=partition)


def test_ten_clients_without_samples_are_named_at_most():
    train = TensorDataset(torch.zeros(1))
    with pytest.raises(ValueError, match=r"12 of 13 clients have no training samples: 1, 2, .*, 10, \.\.\.\. Leave"):
        Federation(train, Partition.of([[0], *[[]] * 12], allow_empty=True))


@pytest.mark.parametrize("name", ["partition", "val_partition", "test_partition"])
def test_lists_of_samples_are_no_partition(name):
    train = TensorDataset(torch.zeros(2))
    partitions = {"partition": Partition.of([[0], [1]]), name: [[0], [1]]}
    with pytest.raises(TypeError, match=rf"Federation\({name}=\.\.\.\) is a list\. Pass a Partition; Partition\.of"):
        Federation(train, val=train, test=train, **partitions)
