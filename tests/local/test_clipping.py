"""Limits of clients' gradients are those of torch for one client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from fedlightning.local.clipping import ByValue, clip_rows, clipped, require_clip


def gradients():
    draw = torch.Generator().manual_seed(0)
    return torch.randn(3, 4, generator=draw), torch.randn(3, 2, generator=draw)


def one_by_one(clip, g, v):
    blocks = []
    for client in range(len(g)):
        parts = [torch.zeros_like(part[client], requires_grad=True) for part in (g, v)]
        for part, gradient in zip(parts, (g[client], v[client]), strict=True):
            part.grad = gradient.clone()
        clip(parts)
        blocks.append([part.grad for part in parts])
    return [torch.stack(each) for each in zip(*blocks, strict=True)]


def test_norms_are_limited_over_all_blocks_of_a_client():
    g, v = gradients()
    expected = one_by_one(lambda parts: torch.nn.utils.clip_grad_norm_(parts, 1.5), g, v)
    torch.testing.assert_close(list(clipped(1.5, g, v)), expected)
    torch.testing.assert_close(list(clip_rows(1.5, g, v)), expected)
    assert (g - expected[0]).abs().max() > 0.1


def test_values_are_limited_one_by_one():
    g, v = gradients()
    expected = one_by_one(lambda parts: torch.nn.utils.clip_grad_value_(parts, 0.5), g, v)
    torch.testing.assert_close(list(clipped(ByValue(0.5), g, v)), expected)
    assert max(block.abs().max() for block in expected) == 0.5


def test_rows_are_scaled_one_by_one_and_nan_stays():
    g, v = torch.tensor([[3.0, 0.0], [0.3, 0.0], [torch.nan, 1.0]]), torch.tensor([[4.0], [0.4], [1.0]])
    short, with_v = clip_rows(1.0, g, v)
    torch.testing.assert_close(short[:2], torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    torch.testing.assert_close(with_v[:2], torch.tensor([[0.8], [0.4]]))
    assert short[2].isnan().all()


def test_without_a_limit_nothing_is_copied():
    g, v = gradients()
    assert clipped(None, g, v)[0] is g


@dataclass
class Owner:
    clip: Any = None


@pytest.mark.parametrize("clip", [None, 1.0, ByValue(0.1)])
def test_limits_are_accepted(clip):
    require_clip(Owner(clip), "clip")


def test_limits_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"Owner\(clip=0.0\): expected > 0, or null"):
        require_clip(Owner(0.0), "clip")
    with pytest.raises(TypeError, match=r"Owner\(clip='norm'\): expected a number"):
        require_clip(Owner("norm"), "clip")
    with pytest.raises(ValueError, match=r"ByValue\(limit=-1.0\): expected > 0"):
        ByValue(-1.0)
