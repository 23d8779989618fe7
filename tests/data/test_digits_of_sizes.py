"""Digits at different resolutions."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedlightning.data import IID, DigitsOfSizes, MixedTensorData
from tests.support.architectures import CLIENTS, SIZES, digits


def test_digits_of_sizes_are_the_digits():
    data, whole = digits(), DigitsOfSizes([8], partitioner=IID(CLIENTS), val_share=0.2)
    ours, theirs = data.federation, whole.federation
    assert isinstance(ours.train, MixedTensorData)
    for name in ("partition", "val_partition", "test_partition"):
        for i, (own, other) in enumerate(zip(getattr(ours, name), getattr(theirs, name), strict=True)):
            (x, y), (full, labels) = ours.train[own], theirs.train[other]
            assert torch.equal(y, labels)
            assert x.shape == (len(own), 1, SIZES[i], SIZES[i])
            torch.testing.assert_close(x, F.avg_pool2d(full, 8 // SIZES[i]), atol=1.01 / 255, rtol=0)
    with pytest.raises(ValueError, match="3 is none of 8, 4, 2, 1"):
        DigitsOfSizes([8, 3])
