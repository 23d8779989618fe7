"""Evaluation data client by client."""

from __future__ import annotations

import torch

from fedlightning.data import ClientLoader, Partition, TensorData


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
