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


@pytest.mark.parametrize("wrong", [6, -1])
def test_positions_that_a_data_set_has_not_are_named(wrong):
    train = TensorDataset(torch.zeros(6))
    wrongly = Partition.of([[0], [], [1, 2, wrong], [4]], allow_empty=True)
    said = rf"client 2 holds sample {wrong}, but train has 6 samples\. Give positions from 0 on and below 6\.$"
    with pytest.raises(ValueError, match=rf"^Federation\(partition=\.\.\.\): {said.replace('client 2', 'client 1')}"):
        Federation(train, Partition.of([[0], [1, 2, wrong], [4]]))
    for name in ("val", "test"):
        with pytest.raises(ValueError, match=rf"^Federation\({name}_partition=.*{said.replace('train', name)}"):
            Federation(train, Partition.of([[0]]), **{name: train, f"{name}_partition": wrongly})
    nobody = Partition.of([[], []], allow_empty=True)
    Federation(train, Partition.of([[5], [0]]), val=train, val_partition=nobody)
