"""Functions of matrices."""

from __future__ import annotations

import pytest
import torch

from fedlightning.proximal import (
    GroupLasso,
    Nuclear,
    SpectralBall,
)
from tests.support.proximal import points


@pytest.mark.parametrize("psi", [Nuclear(0.3, radius=0.5), SpectralBall(0.6)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(psi, dtype):
    z = points((4, 3), 3).to(dtype)
    found = psi.prox(z, 0.4)
    assert found.dtype == dtype
    torch.testing.assert_close(found, psi.prox(z.double(), 0.4).to(dtype), rtol=0.05, atol=0.01)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Nuclear(-0.1), r"Nuclear\(weight=-0.1\): expected > 0"),
        (lambda: SpectralBall(0), r"SpectralBall\(radius=0\): expected > 0"),
        (lambda: GroupLasso(0.1, "cells"), r"GroupLasso\(groups='cells'\): expected 'rows' or 'columns'"),
    ],
)
def test_errors_name_the_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
