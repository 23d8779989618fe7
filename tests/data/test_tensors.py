"""Data sets held as tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from fedlightning import FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.data import FederatedDataModule, MixedTensorData, TensorData
from fedlightning.data.tensors import as_tensor_data, in_memory, shape_of_samples, stored_samples
from fedlightning.oracle import Sequential
from tests.support.evaluated import two_rounds
from tests.support.small import trainer
from tests.support.with_gaps import Listed

MIXED = MixedTensorData([TensorData(torch.arange(3)), TensorData(torch.arange(8).view(4, 2))])


def test_samples_and_batches_pass_the_transform():
    data = TensorData({"x": torch.arange(6).view(3, 2)}, lambda item: item["x"] * 10)
    assert len(data) == 3
    assert data[1].tolist() == [20, 30]
    assert data[1:].tolist() == data[torch.tensor([1, 2])].tolist() == [[20, 30], [40, 50]]


def test_positions_count_through_all_shapes():
    assert len(MIXED) == 7
    assert MIXED[2].tolist() == 2
    assert MIXED[torch.tensor([3, 6])].tolist() == [[0, 1], [6, 7]]
    assert [MIXED.shape_of(position) for position in range(7)] == [0] * 3 + [1] * 4
    assert MIXED.source().minibatches(torch.tensor([[[6]]]))(0)().tolist() == [[[6, 7]]]


def test_data_sets_that_are_tensors_are_recognised():
    pair = TensorDataset(torch.zeros(2, 1), torch.zeros(2))
    data = as_tensor_data(pair)
    assert data.tensors == pair.tensors
    assert as_tensor_data(data) is in_memory(data) is data
    assert in_memory(MIXED) is MIXED
    assert [as_tensor_data(each) for each in (MIXED, Listed(pair), None)] == [None] * 3
    assert in_memory(Listed(pair)) is None


def test_samples_that_a_subclass_makes_of_its_tensors_are_loaded():
    class Scaled(TensorDataset):
        def __getitem__(self, index):
            x, y = super().__getitem__(index)
            return x / 10, y

    class Named(TensorDataset):
        """Adds nothing to the samples."""

        labels = ("a", "b")

    class OneByOne(TensorData):
        def __getitem__(self, index):
            return super().__getitem__(index)[0]

    pair = torch.full((4, 1), 10.0), torch.full((4,), 6.0)
    assert in_memory(Scaled(*pair)) is None
    assert in_memory(OneByOne(pair)) is None
    assert in_memory(Named(*pair)).tensors == pair
    data = FederatedDataModule.from_datasets([Scaled(*pair)], batch_size=None, local_steps=1)
    task = Line()
    trainer(max_steps=1).fit(task, data)
    assert task.line.weight.item() == pytest.approx(0.1 * 2 * 6)  # along x / 10 = 1, from zero


class Line(FederatedLightningModule):
    def __init__(self):
        super().__init__(FedAvg(0.1))
        self.line = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.line.weight)

    def objective(self, batch):
        x, y = batch
        return F.mse_loss(self.line(x).squeeze(1), y)


def test_data_of_one_shape_have_shape_0():
    assert shape_of_samples(MIXED, torch.tensor([5, 6])) == 1
    assert shape_of_samples(TensorData(torch.zeros(9)), torch.tensor([5])) == 0


def test_what_is_in_memory_of_samples_is_known_without_loading_them():
    index = torch.tensor([2, 0])
    pair = TensorDataset(torch.arange(6).view(3, 2), torch.arange(3.0))
    assert [leaf.tolist() for leaf in stored_samples(pair, index)] == [[[4, 5], [0, 1]], [2.0, 0.0]]
    changing = TensorData(pair.tensors, lambda item: torch.rand(2))
    assert torch.equal(stored_samples(changing, index)[0], stored_samples(pair, index)[0])
    assert [leaf.tolist() for leaf in stored_samples(MIXED, torch.tensor([6, 3]))] == [[[6, 7], [0, 1]]]
    loaded = Listed(pair)
    assert stored_samples(loaded, index) == []
    for targets in ([7, 8, 9], torch.tensor([7, 8, 9])):
        loaded.targets = targets
        assert [leaf.tolist() for leaf in stored_samples(loaded, index)] == [[9, 7]]
    for targets in (["a", "b", "c"], [7, 8], torch.zeros(3, 2)):
        loaded.targets = targets
        assert stored_samples(loaded, index) == []


def test_samples_take_the_dtype_of_what_is_trained():
    seen = []

    class Frozen(FederatedLightningModule):
        def __init__(self):
            super().__init__(FedAvg(0.1), oracle=Sequential())
            self.backbone = nn.Linear(6, 6).to(torch.bfloat16).requires_grad_(False)
            self.head = nn.Linear(6, 1)

        def objective(self, batch):
            x, y = batch
            seen.extend([x.dtype, y.dtype])
            return F.mse_loss(self.head(self.backbone(x.bfloat16()).float()).squeeze(1), y)

    two_rounds(Frozen())
    assert set(seen) == {torch.float32}


def test_mixed_positions_count_through_the_parts():
    parts = [TensorData((torch.arange(3).float(),)), TensorData((torch.arange(8).view(4, 2) + 10.0,))]
    mixed = MixedTensorData(parts)
    assert len(mixed) == 7
    assert mixed[1][0] == 1
    assert torch.equal(mixed[4][0], torch.tensor([12.0, 13.0]))
    source = mixed.source().place(torch.device("cpu"), torch.float64)
    index = torch.tensor([[[3, 5]], [[6, 4]]])
    step, everything = source.minibatches_and_all(index, [torch.arange(3, 6), torch.arange(4, 7)])
    (batch,) = step(0)()
    assert torch.equal(batch[1], torch.tensor([[16.0, 17.0], [12.0, 13.0]], dtype=torch.float64))
    (whole,) = everything([0, 1])
    assert whole.shape == (2, 3, 2)
    assert torch.equal(source.minibatches(torch.tensor([[[2]]]))(0)()[0], torch.tensor([[2.0]], dtype=torch.float64))
