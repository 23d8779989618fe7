"""PyTorch computes on fewer threads for a while, never on more."""

from __future__ import annotations

import pytest
import torch

from fedlightning.oracle.threads import limited


@pytest.mark.parametrize(("threads", "expected"), [(1, 1), (2, 2), (9, 3), (None, 3)])
def test_threads_are_limited_and_given_back(threads, expected):
    present = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with limited(threads):
            assert torch.get_num_threads() == expected
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(present)
