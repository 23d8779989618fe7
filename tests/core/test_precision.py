"""Half precision becomes float32, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from fedlightning.core.precision import at_least_float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_float32_with_the_same_values(dtype):
    z = torch.tensor([0.1, -3.0, 65504.0], dtype=dtype)
    wide = at_least_float32(z)
    assert wide.dtype == torch.float32
    assert torch.equal(wide.to(dtype), z)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_numbers_stay_the_same_tensor(dtype):
    z = torch.tensor([0.1], dtype=dtype)
    assert at_least_float32(z) is z
