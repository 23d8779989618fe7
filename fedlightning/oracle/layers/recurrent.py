"""An LSTM of every client, below a ``vmap`` that can batch all other layers.

oneDNN's kernel of an LSTM keeps a processor busy with one client's sequences, and ``vmap`` has no rule for it. It is
called client by client, on tensors that are cut and laid out for all clients at once.

On a GPU, PyTorch's recurrent layers move new weights into one piece of memory before they compute, because cuDNN wants
them there. The weights of a client lie in its point, which algorithms move, and stay in it.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from fedlightning.oracle.layers.batched import are_batched, for_all


def lstm(*args: Any, every_dtype: bool = False, **kwargs: Any) -> tuple[Tensor, ...] | None:
    """Return what ``torch.lstm`` returns, for every client; None where its kernel does not serve.

    Args:
        args: Arguments of ``torch.lstm``.
        every_dtype: Whether to go client by client without the kernel, too, which is slow but right.
        kwargs: Arguments by name, which go their usual way.
    """
    if kwargs or len(args) != _ARGUMENTS or isinstance(args[1], Tensor):  # a packed sequence has a tensor there
        return None
    input, hx, params, *options = args
    if not are_batched(input) or input.dim() != 3 or not _is_served(every_dtype, input, params, *options):
        return None
    return tuple(for_all(partial(_client_by_client, options), input, *hx, *params))


@contextmanager
def weights_in_place(layers: Sequence[nn.RNNBase]) -> Iterator[None]:
    """Let cuDNN copy the weights of recurrent layers in every call, without moving them or advice to move them.

    The layers ask where their weights lie before they move them, which has no answer below ``vmap`` and must not be
    read while a recording is made, so that the whole method is left out.
    """
    _take_no_advice()
    for layer in layers:
        layer.__dict__["flatten_parameters"] = _leave
    try:
        yield
    finally:
        for layer in layers:
            layer.__dict__.pop("flatten_parameters", None)


@cache
def _take_no_advice() -> None:
    """Leave out a warning for good: a filter for some calls would show all others of the user's again and again."""
    warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk")


def _leave() -> None:
    """Move nothing."""


_ARGUMENTS = 9
"""Number of the arguments of ``torch.lstm``, as ``torch.nn.LSTM`` gives them, by position."""


def _is_served(
    every_dtype: bool,
    input: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> bool:
    """Return whether oneDNN computes the layer, or need not, and no random numbers are drawn."""
    draws = train and dropout > 0 and num_layers > 1
    if draws or torch.is_autocast_enabled(input.device.type):
        return False
    is_projected = len(params) != num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    is_meant = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
    has_kernel = is_meant and input.device.type == "cpu" and input.dtype == torch.float32 and not is_projected
    return has_kernel or every_dtype


def _client_by_client(
    options: Sequence[Any], in_dims: Sequence[int | None], *tensors: Tensor
) -> list[tuple[Tensor, int]]:
    """Call the kernel for each client, and stack the results.

    Args:
        options: Arguments of ``torch.lstm`` after the parameters; the last is whether a client's sequences are
            ``[batch, time, features]``.
        in_dims: The place of the dimension S of each tensor; None for one that is the same for all clients.
        tensors: The sequences, the first hidden and cell states, and the parameters.
    """
    *given, batch_first = options
    first = tensors[0].movedim(in_dims[0] or 0, 0)  # [S, ...]
    x = first.transpose(1, 2).contiguous() if batch_first else first
    others = [
        [tensor] * len(x) if dim is None else tensor.movedim(dim, 0).unbind()
        for tensor, dim in zip(tensors[1:], in_dims[1:], strict=True)
    ]
    layer: Any = torch.lstm  # whose overloads take unlike arguments
    found = [layer(own, (h, c), params, *given, False) for own, h, c, *params in zip(x.unbind(), *others, strict=True)]
    y, h, c = map(torch.stack, zip(*found, strict=True))
    return [(y.transpose(1, 2) if batch_first else y, 0), (h, 0), (c, 0)]
