"""Data sets held as tensors, of one shape or several."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from fedlightning import FederatedLightningModule
from fedlightning.algorithms import FedAvg
from fedlightning.data import MixedTensorData, TensorData
from fedlightning.oracle import Sequential
from tests.support.evaluated import two_rounds


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
    (batch,) = step(0)
    assert torch.equal(batch[1], torch.tensor([[16.0, 17.0], [12.0, 13.0]], dtype=torch.float64))
    (whole,) = everything([0, 1])
    assert whole.shape == (2, 3, 2)
    assert torch.equal(source.minibatches(torch.tensor([[[2]]]))(0)[0], torch.tensor([[2.0]], dtype=torch.float64))
