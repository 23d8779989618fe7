"""How four common functions are computed for a whole cohort at once on a CPU.

``torch.func.vmap`` turns S convolutions into one grouped convolution, but lays its input out channel by channel and
copies between layers. On CPUs a grouped convolution and, above all, max pooling are several times faster with channels
last; a linear layer's weight gradient comes out in the weight's own layout if the product is written transposed; and
cross entropy, which vmap takes apart into some thirty operations, is the same on S * B rows. :class:`CohortLayers` sees
every call of these functions below a ``vmap`` and computes it so; gradients follow by ordinary autograd. Whatever it
does not cover goes its usual way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class CohortLayers(TorchFunctionMode):
    """While active, the functions above are computed for all clients at once below one ``vmap``."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Route a call to the cohort's version where there is one."""
        kwargs = kwargs or {}
        rule = _RULES.get(func)
        if rule is not None:
            result = rule(*args, **kwargs)
            if result is not None:
                return result
        return func(*args, **kwargs)


class ChannelsLast(TorchFunctionMode):
    """While active, the inputs of conv2d and max_pool2d are laid out channels last: for one client at a time."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Convert the input and call on."""
        kwargs = kwargs or {}
        if func in (torch.conv2d, F.max_pool2d) and args and _is_plain_image(args[0]):
            args = (_channels_last(args[0]), *args[1:])
        return func(*args, **kwargs)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if bias is None or not (_is_batched(x) and _is_batched(weight) and _is_batched(bias)) or x.dim() != 2:
        return None
    return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return]


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    if not (_is_batched(x) and _is_batched(weight)) or x.dim() != 4 or (bias is not None and not _is_batched(bias)):
        return None
    return _Conv2d.apply(x, weight, bias, stride, padding, dilation, groups)  # type: ignore[no-any-return]


def _max_pool2d(x: Tensor, *args: Any, return_indices: bool = False, **kwargs: Any) -> Tensor | None:
    if return_indices or not _is_batched(x) or x.dim() != 4:
        return None
    return _MaxPool2d.apply(x, args, kwargs)  # type: ignore[no-any-return]


def _cross_entropy(
    x: Tensor, target: Tensor, weight: None = None, *, ignore_index: int = -100, reduction: str = "mean", **other: Any
) -> Tensor | None:
    covered = weight is None and not any(other.values()) and reduction in ("mean", "sum", "none")
    if not covered or not (_is_batched(x) and _is_batched(target)) or x.dim() != 2 or target.dim() != 1:
        return None
    return _CrossEntropy.apply(x, target, ignore_index, reduction)  # type: ignore[no-any-return]


_RULES: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    F.linear: _linear,
    torch.conv2d: _conv2d,
    F.max_pool2d: _max_pool2d,
    F.cross_entropy: _cross_entropy,
}


class _Rule(torch.autograd.Function):
    """A function defined by its ``vmap`` alone: it is applied to batched tensors only."""

    @staticmethod
    def forward(*_: Any) -> Any:
        raise AssertionError("a cohort layer was called outside vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is saved: autograd sees the operations inside the rule."""


class _Linear(_Rule):
    @staticmethod
    def vmap(_: Any, in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, int]:
        x, weight, bias = (t.movedim(dim, 0) for t, dim in zip((x, weight, bias), in_dims, strict=True))
        return torch.baddbmm(bias.unsqueeze(2), weight, x.mT).mT, 0  # [S, batch, out]


class _Conv2d(_Rule):
    @staticmethod
    def vmap(
        _: Any,
        in_dims: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Any,
        padding: Any,
        dilation: Any,
        groups: int,
    ) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 1)  # [batch, S, channels, height, width]
        clients = x.shape[1]
        weight = weight.movedim(in_dims[1], 0).flatten(0, 1)
        bias = None if bias is None else bias.movedim(in_dims[2], 0).flatten()
        x = _channels_last(x.flatten(1, 2))
        y = F.conv2d(x, weight, bias, stride, padding, dilation, clients * groups)
        return y.unflatten(1, (clients, -1)), 1


class _MaxPool2d(_Rule):
    @staticmethod
    def vmap(_: Any, in_dims: Any, x: Tensor, args: Any, kwargs: Any) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 1)
        clients = x.shape[1]
        y = F.max_pool2d(_channels_last(x.flatten(1, 2)), *args, **kwargs)
        return y.unflatten(1, (clients, -1)), 1


class _CrossEntropy(_Rule):
    @staticmethod
    def vmap(_: Any, in_dims: Any, x: Tensor, target: Tensor, ignore_index: int, reduction: str) -> tuple[Tensor, int]:
        x, target = x.movedim(in_dims[0], 0), target.movedim(in_dims[1], 0)  # [S, batch, classes], [S, batch]
        loss = F.cross_entropy(x.flatten(0, 1), target.flatten(), ignore_index=ignore_index, reduction="none")
        loss = loss.view(target.shape)
        if reduction == "none":
            return loss, 0
        total = loss.sum(1)
        return (total if reduction == "sum" else total / (target != ignore_index).sum(1)), 0


def _channels_last(x: Tensor) -> Tensor:
    """``[batch, channels, height, width]`` with channels last in memory, also where there is one channel only.

    A tensor of one channel counts as contiguous in both layouts, and a convolution would take it for channels first.
    """
    x = x.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = x.shape
    return x.as_strided(x.shape, (channels * height * width, 1, channels * width, channels))


def _is_plain_image(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 4 and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def _is_batched(x: Any) -> bool:
    return isinstance(x, Tensor) and torch._C._functorch.is_batchedtensor(x)
