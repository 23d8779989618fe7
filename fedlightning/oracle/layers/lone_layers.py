"""One client's layers, in layouts that are fast and draw what they draw in a cohort."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor, is_legacy_batchedtensor
from torch.nn import functional as F

from fedlightning.oracle.layers.views import NORMS, VIEWS, Views, compact, exact_norm
from fedlightning.oracle.sight import Sight


class LoneLayers(Views):
    """Computes one client's layers, while active, in layouts that are fast and draw what they draw in a cohort.

    On CPUs, images may be laid out channels last, and convolutions with few pixels be computed as products: see
    :func:`laid_out`, :func:`max_pool2d` and :func:`product_of_few_pixels`. Random numbers fill a tensor in the order of
    its memory, so tensors are laid out in the order of their dimensions before they are filled.

    Raises:
        UsageError: At the end, if the objective wrote into a view that had to be a copy.
    """

    def __init__(self, channels_last: bool = True, products: bool = True) -> None:
        """Choose what suits the device.

        Args:
            channels_last: Whether images may be laid out channels last.
            products: Whether convolutions may be computed as products, if ``channels_last``.
        """
        super().__init__()
        self._channels_last = channels_last
        self._products = products

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, with another layout of its input where necessary."""
        kwargs = kwargs or {}
        if func in _IMAGE_FUNCTIONS:
            if self._channels_last and args and _is_plain_image(args[0]):
                if func is F.max_pool2d:
                    return max_pool2d(*args, **kwargs)
                product = product_of_few_pixels(*args, **kwargs) if self._products else None
                if product is not None:
                    return product
                args = (laid_out(*args[:2]), *args[1:])
        elif func in VIEWS and args:
            return self.view(func, *args, **kwargs)
        elif func in NORMS and args:
            return exact_norm(func, *args, **kwargs)
        elif func in _DRAW_LIKE_INPUT:
            if args and isinstance(args[0], Tensor):
                args = (args[0].contiguous(), *args[1:])
        elif func in _FILL and not args[0].is_contiguous():
            filled = func(torch.empty_like(args[0], memory_format=torch.contiguous_format), *args[1:], **kwargs)
            return args[0].copy_(filled)
        elif func is torch.view_as_complex:
            args = tuple(map(compact, args))
        return func(*args, **kwargs)


_IMAGE_FUNCTIONS = (torch.conv2d, F.max_pool2d)

_DRAW_LIKE_INPUT = frozenset(
    {
        F.dropout,
        F.dropout1d,
        F.dropout2d,
        F.dropout3d,
        F.alpha_dropout,
        F.feature_alpha_dropout,
        F.rrelu,
        F.gumbel_softmax,
        torch.dropout,
        torch.rand_like,
        torch.randn_like,
        torch.randint_like,
    }
)
"""Functions that fill a tensor laid out like their input with random numbers."""

_FILL = frozenset(
    getattr(Tensor, name)
    for name in (
        "bernoulli_",
        "cauchy_",
        "exponential_",
        "geometric_",
        "log_normal_",
        "normal_",
        "random_",
        "uniform_",
    )
)


def channels_last(x: Tensor) -> Tensor:
    """Return ``[batch, channels, height, width]`` with channels last in memory, even if there is only one channel.

    A tensor of one channel counts as contiguous in both layouts, and a convolution would take it for channels first.
    The backward pass of ``as_strided`` copies the gradient, so strides that are right already stay.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = x.shape
    strides = (channels * height * width, 1, channels * width, channels)
    return x if x.stride() == strides else x.as_strided(x.shape, strides)


def laid_out(image: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return a convolution's input channels last, unless its weight is larger.

    A convolution lays its weight out as its input, unless its kernel is a single pixel. With a large weight, that takes
    longer than it saves.
    """
    heavy = isinstance(weight, Tensor) and weight.numel() > image.numel() and weight.shape[2:] != (1, 1)
    return image.contiguous() if heavy else channels_last(image)


def product_of_few_pixels(
    image: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    """Return ``F.conv2d`` as a product of matrices, if its images have few pixels and its weight is large; else None.

    So they are in the last layers of a network. A convolution takes much of its time there to lay its weight out and
    the weight's gradient back, a product does not; and where the gradient is a product, a step can subtract it while it
    is computed (see :mod:`fedlightning.oracle.recording.program`). Where what autograd saves is packed, as below a
    checkpoint, it stays a convolution: a second forward pass may run without us, and must save the same.
    """
    if groups != 1 or not _are_alike(image, weight, bias) or torch.is_autocast_enabled("cpu") or Sight.now().packs:
        return None
    stride, padding, dilation = _pair(stride, 1), _pair(padding, 0), _pair(dilation, 1)
    if stride is None or padding is None or dilation is None:
        return None
    sizes = zip(image.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    height, width = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sizes)
    if min(height, width) < 1 or not 0 < len(image) * height * width <= _FEW_PIXELS:
        return None
    columns = F.unfold(image, weight.shape[2:], dilation, padding, stride).transpose(0, 1).flatten(1)
    y = weight.flatten(1) @ columns
    if bias is not None:
        y = y + bias[:, None]
    found: Tensor = y.unflatten(1, (len(image), height, width)).transpose(0, 1).contiguous()
    return found


_LARGE_WEIGHT = 2**17
"""Numbers of a weight from which on a product takes less time than a convolution, if there are few pixels."""

_FEW_PIXELS = 64
"""Pixels of all images of a minibatch together, up to which it does; they are the columns of the product."""


def _pair(x: Any, least: int) -> tuple[int, int] | None:
    """Return the numbers for height and width; None if they are no whole numbers of at least ``least``."""
    numbers = [*x] if isinstance(x, list | tuple) else [x]
    if len(numbers) not in (1, 2) or not all(type(number) is int and number >= least for number in numbers):
        return None
    return numbers[0], numbers[-1]


def _are_alike(image: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Return whether a product takes what a convolution takes: real or complex numbers that lie in plain memory."""
    if weight.dim() != 4 or weight.numel() < _LARGE_WEIGHT or image.shape[1] != weight.shape[1]:
        return False
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != weight.dtype):
        return False
    plain = image.layout == weight.layout == torch.strided
    return plain and image.dtype == weight.dtype and (weight.is_floating_point() or weight.is_complex())


def max_pool2d(image: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return ``F.max_pool2d`` of images, computed channels last, forwards and backwards.

    Where the gradient comes in the other layout, as it does from a linear layer, PyTorch would pool it backwards in
    that layout and copy the whole result, which takes four times as long as copying the gradient first.
    """
    y: Tensor = F.max_pool2d(channels_last(image), *args, **kwargs)
    if y.grad_fn is not None and not is_functorch_wrapped_tensor(y):
        y.grad_fn.register_prehook(_all_channels_last)
    return y


def _all_channels_last(gradients: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Lay out gradients; those of ``is_grads_batched=True`` have no layout that one could ask for."""
    return tuple(
        each if each is None or is_legacy_batchedtensor(each) else each.contiguous(memory_format=torch.channels_last)
        for each in gradients
    )


def _is_plain_image(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 4 and not is_functorch_wrapped_tensor(x)
