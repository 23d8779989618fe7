"""Replacements for a few functions whose usual computation is slow, or wrong, for a cohort of clients.

``torch.func.vmap`` turns S convolutions into one grouped convolution, but lays its input out channel by channel and
copies between layers. On CPUs a grouped convolution and, above all, max pooling are several times faster with channels
last. A linear layer's weight gradient comes out in the weight's own layout if the product is written transposed. Cross
entropy, which vmap takes apart into some thirty operations, can be computed on all S * B rows at once. An LSTM has no
rule at all, and runs client by client (:mod:`fedlightning.oracle.layers.recurrent`). Self-attention of several heads
copies less than PyTorch's own (:mod:`fedlightning.oracle.layers.attention`). :class:`CohortLayers` sees every call of
these functions below a ``vmap`` and computes it in this way; gradients follow by ordinary autograd. All other calls go
their usual way.

Some functions need a correction on every device. The padding row of an embedding has no gradient in any client (below
vmap it would have one in all clients but the first), and an index beyond the table gives NaN (below vmap, another
client's row). A class beyond those of ``one_hot`` is an error (below vmap, a row of zeros). Counts of indices among all
clients (``scale_grad_by_freq``) are refused. A parameter says that it requires a gradient just as when clients are
computed one by one. A parameter seen as complex numbers is copied first, because views into a flat vector may lie at
odd places.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import (
    TransformType,
    get_interpreter_stack,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
)
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedlightning.core.errors import UsageError
from fedlightning.oracle.layers.attention import self_attention
from fedlightning.oracle.layers.batched import are_batched, first, for_all
from fedlightning.oracle.layers.lone_layers import laid_out, max_pool2d
from fedlightning.oracle.layers.recurrent import lstm
from fedlightning.oracle.layers.views import NORMS, VIEWS, Views, compact, exact_norm


class CohortLayers(Views):
    """Computes the functions above for all clients at once, below one ``vmap``, while active.

    Raises:
        UsageError: At the end, if the objective wrote into a view that had to be a copy.
    """

    def __init__(self, fast: bool = True, every_dtype: bool = False) -> None:
        """Choose the rules.

        Args:
            fast: Whether to use all rules, as suits CPUs; otherwise only the rules that correct wrong results.
            every_dtype: Whether the rules must serve every dtype that they are right for, though it may be slow.
        """
        super().__init__()
        self._fast = fast
        self._rules = _NEEDED if not fast else RULES | _EVERY_DTYPE if every_dtype else RULES

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace a call by the cohort's version, if there is one."""
        kwargs = kwargs or {}
        rule = self._rules.get(func)
        if rule is not None:
            result = rule(*args, **kwargs)
            if result is not None:
                return result
        if self._fast and args and func in VIEWS:
            return self.view(func, *args, **kwargs)
        if self._fast and args and func in NORMS:
            return exact_norm(func, *args, **kwargs)
        if func is F.multi_head_attention_forward:
            with self:  # PyTorch takes a mode off while it handles a call
                result = self_attention(*args, **kwargs) if self._fast else None
                return _OPEN_ATTENTION(*args, **kwargs) if result is None else result
        return func(*args, **kwargs)


_OPEN_ATTENTION = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda _: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
"""Multi-head attention that does not look for modes itself, so that the calls inside meet the mode that is active."""


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
    if not are_batched(input, weight, *(() if bias is None else (bias,))) or input.dim() < 2:
        return None
    return _Linear.apply(input, weight, bias)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    plain = attn_mask is None and dropout_p == 0.0 and not enable_gqa
    if not plain or not are_batched(query, key, value) or not query.dim() == key.dim() == value.dim() == 4:
        return None
    return _Attention.apply(query, key, value, is_causal, scale)


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    if not are_batched(input, weight, *(() if bias is None else (bias,))) or input.dim() != 4:
        return None
    return _Conv2d.apply(input, weight, bias, stride, padding, dilation, groups)


def _group_norm(
    input: Tensor, num_groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor | None:
    given = [tensor for tensor in (input, weight, bias) if tensor is not None]
    if not are_batched(*given) or input.dim() < 3:
        return None
    return _GroupNorm.apply(input, num_groups, weight, bias, eps)


def _max_pool2d(input: Tensor, *args: Any, return_indices: bool = False, **kwargs: Any) -> Tensor | None:
    if return_indices or len(args) > 5 or not are_batched(input) or input.dim() != 4:
        return None
    return _MaxPool2d.apply(input, args, kwargs)


def _cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor | None:
    usual = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    covered = usual and reduction in ("mean", "sum", "none")
    if not covered or not are_batched(input, target) or input.dim() != 2 or target.dim() != 1:
        return None
    return _CrossEntropy.apply(input, target, ignore_index, reduction)


def _embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    if max_norm is not None or sparse or not is_batchedtensor(weight):
        return None
    if scale_grad_by_freq:
        raise UsageError("below vmap, an embedding's scale_grad_by_freq counts the indices of all clients")
    last = weight.shape[0] - 1
    rows = F.embedding(input.clamp(0, last), weight)
    if padding_idx is not None:
        padding = input == padding_idx % weight.shape[0]
        rows = torch.where(padding[..., None], rows.detach(), rows)
    outside = (input < 0) | (input > last)  # below vmap, this would be a row of another client
    return rows.masked_fill(outside[..., None], torch.nan)


def _one_hot(input: Tensor, num_classes: int = -1) -> None:
    """Raise an error where a class has no place in the code; then it goes its usual way.

    Below vmap PyTorch makes a row of zeros of such a class, as it does below one of the objective's own, which is left
    alone. Replays look as well, at whatever numbers there are.
    """
    active = get_interpreter_stack() or ()  # None outside
    if num_classes > 0 and sum(each.key() == TransformType.Vmap for each in active) == 1:
        classes = input
        while is_functorch_wrapped_tensor(classes):
            classes = get_unwrapped(classes)
        torch._assert_async(((classes >= 0) & (classes < num_classes)).all(), "a class of one_hot is out of its range")


def _requires_grad(x: Tensor) -> bool | None:
    """Return True if gradients are taken above the ``vmap``; None leaves the answer to PyTorch."""
    while is_batchedtensor(x):
        x = get_unwrapped(x)
    return x.requires_grad or None


def _view_as_complex(input: Tensor) -> Tensor:
    return torch.view_as_complex(compact(input))


def _set_data(x: Tensor, value: Tensor) -> None:
    """Refuse what would outlive the ``vmap`` that it belongs to; anything else goes its usual way."""
    if is_functorch_wrapped_tensor(value):
        raise UsageError("a tensor's .data is set to what differs by client")


_NEEDED: dict[Callable[..., Any], Callable[..., Any]] = {
    F.embedding: _embedding,
    F.one_hot: _one_hot,
    Tensor.requires_grad.__get__: _requires_grad,  # type: ignore[attr-defined]
    torch.view_as_complex: _view_as_complex,
    Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
}

RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    **_NEEDED,
    F.linear: _linear,
    F.scaled_dot_product_attention: _attention,
    torch.conv2d: _conv2d,
    F.group_norm: _group_norm,
    F.max_pool2d: _max_pool2d,
    F.cross_entropy: _cross_entropy,
    torch.lstm: lstm,
}
"""By function, how it is computed for a cohort of clients; a rule returns None where the usual way does."""

_EVERY_DTYPE = {torch.lstm: partial(lstm, every_dtype=True)}


class _Rule:
    """Base of functions that define only their ``vmap``, because they are applied to batched tensors only.

    As a ``torch.autograd.Function`` with a ``vmap`` would, but sooner; autograd sees the operations inside.
    """

    vmap: Callable[..., tuple[Tensor, int]]

    @classmethod
    def apply(cls, *args: Any) -> Tensor:
        """Compute the function below the innermost ``vmap``, over which all tensors in the arguments are batched."""
        (result,) = for_all(lambda in_dims, *plain: [cls.vmap(in_dims, *plain)], *args)
        return result


class _Linear(_Rule):
    @staticmethod
    def vmap(in_dims: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, int]:
        x, weight = first(x, in_dims[0]), first(weight, in_dims[1])
        bias = None if bias is None else first(bias, in_dims[2])
        y = _CohortLinear.apply(*_autocast(x.flatten(1, -2), weight, bias))  # [S, rows, out]
        return y.unflatten(1, x.shape[1:-1]), 0


def _autocast(*tensors: Tensor | None) -> list[Tensor | None]:
    """Convert tensors as autocast would before a product, so that the backward pass meets what the product met."""
    device = next(t.device.type for t in tensors if t is not None)
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    return [t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors]


class _CohortLinear(torch.autograd.Function):
    """Products for all clients at once, with gradients in the layout of what they belong to."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias.unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        return (
            torch.bmm(gradient, weight) if for_x else None,
            torch.bmm(gradient.mT, x) if for_weight else None,
            gradient.sum(1) if for_bias else None,
        )


class _Attention(_Rule):
    @staticmethod
    def vmap(
        in_dims: Any, query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None
    ) -> tuple[Tensor, int]:
        q, k, v = (first(t, dim).flatten(0, 1) for t, dim in zip((query, key, value), in_dims, strict=False))
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
        return y.unflatten(0, (query.shape[in_dims[0]], -1)), 0  # [S, batch, heads, length, width]


class _Conv2d(_Rule):
    @staticmethod
    def vmap(
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
        weight = first(weight, in_dims[1]).flatten(0, 1)
        bias = None if bias is None else first(bias, in_dims[2]).flatten()
        x = laid_out(x.flatten(1, 2), weight)
        y = F.conv2d(x, weight, bias, stride, padding, dilation, clients * groups)
        return y.unflatten(1, (clients, -1)), 1


class _GroupNorm(_Rule):
    @staticmethod
    def vmap(
        in_dims: Any, x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 1)  # [batch, S, channels, ...]
        clients = x.shape[1]
        scale, shift = (
            None if t is None else first(t, dim).flatten() for t, dim in ((weight, in_dims[2]), (bias, in_dims[3]))
        )
        y = F.group_norm(x.flatten(1, 2), clients * groups, scale, shift, eps)
        return y.unflatten(1, (clients, -1)), 1


class _MaxPool2d(_Rule):
    @staticmethod
    def vmap(in_dims: Any, x: Tensor, args: Any, kwargs: Any) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 1)
        clients = x.shape[1]
        y = max_pool2d(x.flatten(1, 2), *args, **kwargs)
        return y.unflatten(1, (clients, -1)), 1


class _CrossEntropy(_Rule):
    @staticmethod
    def vmap(in_dims: Any, x: Tensor, target: Tensor, ignore_index: int, reduction: str) -> tuple[Tensor, int]:
        x, target = first(x, in_dims[0]), first(target, in_dims[1])  # [S, batch, classes], [S, batch]
        loss = F.cross_entropy(x.flatten(0, 1), target.flatten(), ignore_index=ignore_index, reduction="none")
        loss = loss.view(target.shape)
        if reduction == "none":
            return loss, 0
        total = loss.sum(1)
        return (total if reduction == "sum" else total / (target != ignore_index).sum(1)), 0
