"""Images that layers laid out in their own way are viewed, and normalised, as everywhere else."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.nn import functional as F

from fedlightning.core.errors import UsageError
from fedlightning.oracle.layers.cohort_layers import CohortLayers
from fedlightning.oracle.layers.lone_layers import LoneLayers, channels_last
from fedlightning.oracle.layers.views import MANY

VIEWS = {
    "view": lambda x: x.view(len(x), -1),
    "view, as another dtype": lambda x: x.view(torch.int64),
    "view_as": lambda x: x.view_as(torch.empty(len(x), 36)),
    "as_strided": lambda x: x.as_strided((len(x), 36), (36, 1)),
    "torch.as_strided": lambda x: torch.as_strided(x, (len(x), 18), (36, 2)),
}


def image():
    torch.manual_seed(0)
    return torch.randn(5, 4, 3, 3)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_are_those_of_the_usual_layout(view):
    x = torch.randn(5, 4, 3, 6) if view is VIEWS["view, as another dtype"] else image()
    with LoneLayers():
        assert torch.equal(view(channels_last(x)), view(x))
        assert torch.equal(view(x), view(x.clone()))


@pytest.mark.parametrize("view", [VIEWS["view"], VIEWS["view_as"]], ids=["view", "view_as"])
def test_views_are_those_of_the_usual_layout_below_vmap(view):
    images = torch.randn(5, 3 * 4, 3, 3)  # of three clients, as a convolution of all of them has them
    laid_out = channels_last(images).unflatten(1, (3, 4))
    with CohortLayers():
        found = vmap(view, in_dims=1)(laid_out)
    assert torch.equal(found, torch.stack([view(x.contiguous()) for x in images.unflatten(1, (3, 4)).unbind(1)]))


def test_a_view_that_needs_no_copy_is_one():
    x = channels_last(image())
    with LoneLayers():
        assert x.view(5, 2, 2, 9).data_ptr() == x.data_ptr()


@pytest.mark.parametrize("context", [LoneLayers, CohortLayers])
def test_impossible_views_are_refused_as_everywhere(context):
    with context(), pytest.raises(RuntimeError, match=r"shape '\[7\]' is invalid for input of size 180"):
        channels_last(image()).view(7)


@pytest.mark.parametrize("below_vmap", [False, True])
def test_writing_into_a_copy_is_refused_with_a_remedy(below_vmap):
    def masked(x, copy=False):
        rows = x.view(len(x), -1)
        rows = rows.clone() if copy else rows
        rows[:, ::2] = 0
        return rows

    def run(**options):
        laid_out = channels_last(torch.randn(5, 12, 3, 3))
        if below_vmap:
            with CohortLayers():
                vmap(lambda x: masked(x, **options), in_dims=1)(laid_out.unflatten(1, (3, 4)))
        else:
            with LoneLayers():
                masked(laid_out, **options)

    with pytest.raises(UsageError, match=r"writes into a view .*x\.view\(\.\.\.\)\.clone\(\)"):
        run()
    run(copy=True)


def test_an_error_of_the_objective_comes_first():
    def fail():
        with LoneLayers():
            channels_last(image()).view(5, -1).zero_()
            raise KeyError("own")

    with pytest.raises(KeyError):
        fail()


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(4), lambda x: torch.batch_norm(x, *[None] * 4, True, 0.1, 1e-5, False)]
)
@pytest.mark.parametrize("below_vmap", [False, True])
def test_batch_normalisation_over_many_numbers_is_exact(norm, below_vmap):
    """Channels last, PyTorch's own is far less exact for as many numbers."""
    torch.manual_seed(0)
    x = channels_last(torch.randn(16, 12 if below_vmap else 4, 64, 64) + 3)
    exact = F.batch_norm(x.double(), None, None, training=True)
    assert len(x) * 64 * 64 >= MANY

    def error(context):
        with context:
            found = vmap(norm, in_dims=1, out_dims=1)(x.unflatten(1, (3, 4))).flatten(1, 2) if below_vmap else norm(x)
        return (found - exact).abs().max().item()

    if isinstance(norm, nn.Module) and below_vmap:
        norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    assert error(CohortLayers() if below_vmap else LoneLayers()) < 2e-6 < error(nullcontext())


def test_batch_normalisation_of_few_numbers_or_in_evaluation_stays_in_its_layout():
    torch.manual_seed(0)
    norm, x = nn.BatchNorm2d(4), torch.randn(16, 4, 64, 64)
    with LoneLayers():
        assert norm(channels_last(x[:1])).stride(1) == 1
        assert norm.eval()(channels_last(x)).stride(1) == 1
        assert norm.train()(channels_last(x)).is_contiguous()
