"""Functions of matrices."""

from __future__ import annotations

import pytest
import torch

from fedlightning.proximal import Nuclear, SpectralBall
from tests.support.proximal import points


@pytest.mark.parametrize("psi", [Nuclear(0.3, radius=0.5), SpectralBall(0.6)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(psi, dtype):
    z = points((4, 3), 3).to(dtype)
    found = psi.prox(z, 0.4)
    assert found.dtype == dtype
    torch.testing.assert_close(found, psi.prox(z.double(), 0.4).to(dtype), rtol=0.05, atol=0.01)
