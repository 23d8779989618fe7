"""One client's layers give what they give without us, in layouts of ours."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from fedlightning.oracle import Sequential, Vectorized
from fedlightning.oracle.layers.cohort_layers import CohortLayers
from fedlightning.oracle.layers.lone_layers import (
    LoneLayers,
    channels_last,
    laid_out,
    max_pool2d,
    product_of_few_pixels,
)
from tests.support.cohorts import setting


@pytest.mark.parametrize("channels", [1, 3])
def test_channels_last_says_so_even_of_one_channel(channels):
    x = torch.randn(2, channels, 4, 5)
    y = channels_last(x)
    assert torch.equal(x, y)
    assert y.stride() == (channels * 20, 1, channels * 5, channels)


def test_only_weights_that_are_lighter_than_the_image_are_laid_out_like_it():
    """A kernel of one pixel lies in memory as it does in either layout."""
    image = torch.randn(1, 8, 4, 4)
    assert laid_out(image, torch.randn(4, 8, 2, 2)).stride(1) == 1
    assert laid_out(image, torch.randn(5, 8, 2, 2)).is_contiguous()
    assert laid_out(channels_last(image), torch.randn(5, 8, 2, 2)).is_contiguous()
    assert laid_out(image, torch.randn(80, 8, 1, 1)).stride(1) == 1


def test_networks_give_what_they_give_without_it():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.MaxPool2d(2), nn.Conv2d(6, 80, 2, padding=1), nn.GroupNorm(4, 80), nn.Conv2d(80, 3, 1)
    ).double()
    x, found = torch.randn(4, 2, 10, 10, dtype=torch.float64), []
    for context in (nullcontext(), LoneLayers(), LoneLayers(channels_last=False)):
        with context:
            loss = net(x).square().mean()
        found.append((loss, *torch.autograd.grad(loss, list(net.parameters()))))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0])


def test_random_numbers_do_not_depend_on_the_layout():
    x = torch.ones(2, 3, 4, 5)
    drawn = []
    for image in (x, channels_last(x)):
        torch.manual_seed(0)
        with LoneLayers():
            drawn.append((F.dropout(image, 0.5), torch.empty_like(image).uniform_(), torch.rand_like(image)))
    torch.testing.assert_close(drawn[0], drawn[1], rtol=0, atol=0)


FEW_PIXELS = {
    "same size": ((4, 4, 4), 3, {"padding": 1}),
    "half the size": ((4, 8, 7), 3, {"stride": 2, "padding": 1}),
    "one pixel of four": ((4, 8, 8), 1, {"stride": (2, 2)}),
    "other numbers of rows and columns": ((2, 5, 12), (3, 5), {"stride": (2, 3), "padding": [1, 2]}),
    "dilated": ((1, 7, 9), 3, {"dilation": (1, 2), "padding": (1, 2), "stride": (2, 1)}),
    "one number for both": ((4, 4, 4), 3, {"stride": (1,), "padding": [1], "dilation": (1,)}),
    "no batch of images": ((1, 3, 3), 3, {}),
}
"""Number of images with their height and width, kernel, and what else a convolution takes."""


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", FEW_PIXELS)
def test_a_convolution_of_few_pixels_is_a_product(name, bias):
    """Its values, gradients and second derivatives are those of the convolution, channels first in memory."""
    torch.manual_seed(0)
    (images, *size), kernel, options = FEW_PIXELS[name]
    layer = nn.Conv2d(160, 960, kernel, bias=bias, **options).double()
    x = torch.randn(images, 160, *size, dtype=torch.float64, requires_grad=True)
    leaves, found = [x, *layer.parameters()], []
    for context in (nullcontext(), LoneLayers()):
        with context:
            y = layer(x)
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        found.append((y, *first, *torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), leaves)))
    torch.testing.assert_close(found[1], found[0])
    assert found[1][0].is_contiguous()
    assert type(found[1][0].grad_fn) is not type(found[0][0].grad_fn)


@pytest.mark.parametrize(
    ("images", "channels", "out", "options"),
    [
        (13, 160, 960, {"stride": (4, 3)}),  # 13 x 5 pixels: one too many
        (0, 160, 960, {}),
        (1, 120, 960, {}),  # a smaller weight
        (1, 160, 960, {"groups": 2}),  # whose weight should have 80 channels: PyTorch says so
        (1, 160, 960, {"padding": "same", "stride": 1}),
        (1, 160, 960, {"stride": 0}),
        (1, 160, 960, {"padding": -1}),
        (1, 160, 960, {"dilation": (1, 1, 1)}),
        (1, 160, 960, {"stride": torch.tensor(2)}),
    ],
)
def test_other_convolutions_stay_convolutions(images, channels, out, options):
    options = {"stride": 2, "padding": 0, "dilation": 1, "groups": 1, **options}
    weight, image = torch.randn(out, channels, 1, 1), torch.randn(images, channels, 4, 14)
    assert product_of_few_pixels(image, weight, None, **options) is None


@pytest.mark.parametrize("change", [torch.Tensor.half, torch.Tensor.long, torch.Tensor.to_mkldnn])
def test_products_are_of_numbers_that_are_alike(change):
    """And real or complex: neither whole numbers nor tensors of a layout of their own."""
    image, weight, bias = torch.ones(1, 160, 2, 2), torch.ones(960, 160, 1, 1), torch.ones(960)
    assert product_of_few_pixels(image, weight, bias) is not None
    assert product_of_few_pixels(change(image), weight, bias) is None
    assert product_of_few_pixels(image, weight, bias.double()) is None
    assert product_of_few_pixels(image, weight, bias[:1]) is None
    assert product_of_few_pixels(image.long(), weight.long()) is None
    assert product_of_few_pixels(image[0], weight) is None
    assert product_of_few_pixels(image, weight[..., 0]) is None


def test_below_a_checkpoint_a_convolution_stays_one():
    """The second forward pass may run without us, and must save as many tensors."""
    layer, x = nn.Conv2d(160, 960, 1), torch.randn(1, 160, 2, 2)
    parameters, found = list(layer.parameters()), []
    for context in (nullcontext(), LoneLayers()):
        with context:
            loss = checkpoint(lambda w, b: F.conv2d(x, w, b).square().sum(), *parameters, use_reentrant=False)
        found.append(torch.autograd.grad(loss, parameters))
    torch.testing.assert_close(found[1], found[0])


def test_evaluation_one_by_one_keeps_every_convolution():
    """Products are compared with it."""
    net = nn.Sequential(nn.Conv2d(160, 960, 1), nn.Flatten(), nn.Linear(960, 3))
    objective, w, v, b, data = setting(net, (160, 1, 1))
    with Convolutions() as one_by_one:
        Sequential().evaluator(objective, 100)(w, v, b, data)
    with Convolutions() as replayed:
        Vectorized(backward="each", threads=1).evaluator(objective, 100)(w, v, b, data)
    assert (one_by_one.seen, replayed.seen) == (len(w), 0)


class Convolutions(TorchDispatchMode):
    """Counts convolutions that are differentiated."""

    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += func is torch.ops.aten.convolution_backward.default
        return func(*args, **(kwargs or {}))


def test_under_autocast_a_convolution_gives_what_it_gives():
    layer, x, found = nn.Conv2d(160, 960, 1), torch.randn(1, 160, 4, 4), []
    for context in (nullcontext(), LoneLayers()):
        with torch.autocast("cpu", torch.bfloat16), context:
            found.append(layer(x))
    assert torch.equal(*found)


def test_errors_of_convolutions_are_those_of_pytorch():
    layer = nn.Conv2d(160, 960, 3)
    with LoneLayers():
        with pytest.raises(RuntimeError, match=r"expected input.* to have 160 channels, but got 10"):
            layer(torch.randn(1, 10, 4, 4))
        with pytest.raises(RuntimeError, match="Kernel size can't be greater than actual input size"):
            layer(torch.randn(1, 160, 2, 2))
        with pytest.raises(RuntimeError, match=r"weight type|should be the same"):
            layer(torch.randn(1, 160, 4, 4).double())


class PooledBackwards(TorchDispatchMode):
    """Collects what max pooling is given to pool backwards, and its own input."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.max_pool2d_with_indices_backward.default:
            self.seen += args[:2]
        return func(*args, **(kwargs or {}))


def lone(pool, x):
    with LoneLayers():
        return pool(x)


def cohort(pool, x):
    with CohortLayers():
        return torch.func.vmap(pool)(x[None])[0]


@pytest.mark.parametrize("compute", [lone, cohort])
def test_a_gradient_is_pooled_backwards_in_the_layout_of_the_image(compute):
    """Otherwise PyTorch copies all that it has pooled; a linear layer gives its gradient channels first."""

    def pool(image):
        return F.max_pool2d(image, 3, 2, padding=1)

    x, weight = torch.randn(2, 3, 6, 6, requires_grad=True), torch.arange(54.0).view(2, 27)
    expected = torch.autograd.grad((pool(x).flatten(1) * weight).sum(), x)
    with PooledBackwards() as backwards:
        found = torch.autograd.grad((compute(pool, x).flatten(1) * weight).sum(), x)
    assert torch.equal(found[0], expected[0])
    assert [each.is_contiguous(memory_format=torch.channels_last) for each in backwards.seen] == [True, True]


def test_pooling_can_be_differentiated_twice_and_without_gradients():
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: max_pool2d(x, 2).square().flatten(1), x)
    assert max_pool2d(x.detach(), 2).grad_fn is None
    _, tangent = torch.func.jvp(lambda x: max_pool2d(x, 2), (x.detach(),), (torch.ones_like(x),))
    assert torch.equal(tangent, torch.ones(1, 2, 2, 2, dtype=torch.float64))


@pytest.mark.parametrize("vectorize", [False, True])
def test_gradients_of_pooling_may_be_batched(vectorize):
    x, found = torch.arange(32.0).view(1, 2, 4, 4), []
    for context in (nullcontext(), LoneLayers()):
        with context:
            found.append(torch.autograd.functional.jacobian(lambda x: F.max_pool2d(x, 2), x, vectorize=vectorize))
    assert torch.equal(*found)
