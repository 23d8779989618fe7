"""Columns are sorted in the dtype that sorting needs, and blocks are joined."""

from __future__ import annotations

import pytest
import torch

from fedlightning.channel.robust.columns import ascending, by_columns, double
from fedlightning.channel.robust.rows import ClientRows
from tests.support.rules import drawn


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_columns_are_sorted_and_the_block_stays(dtype):
    block = drawn(6, dtype=dtype)
    before = block.clone()
    wide = torch.promote_types(dtype, torch.float32)
    assert torch.equal(ascending(block), before.to(wide).sort(dim=0).values)
    assert ascending(block).dtype == wide
    assert torch.equal(block, before)


@pytest.mark.gpu
def test_columns_are_sorted_on_a_gpu():
    block = drawn(6)
    assert torch.equal(ascending(block.cuda()).cpu(), ascending(block))


def test_blocks_are_joined_in_the_dtype_of_the_rows():
    values = drawn(4, dtype=torch.bfloat16)
    found = by_columns(ClientRows([values], range(4), columns=5), lambda block: block.float().amax(dim=0))
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, values.amax(dim=0))


def test_numbers_become_float64():
    assert double(torch.tensor([0.1])).item() == torch.tensor(0.1).double().item()
