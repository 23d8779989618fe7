"""An LSTM of every client, below a ``vmap`` that can batch all other layers.

oneDNN's kernel of an LSTM keeps a processor busy with one client's sequences, and ``vmap`` has no rule for it. It is
called client by client, on tensors that are cut and laid out for all clients at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fedlightning.oracle.batched import are_batched, for_all


def lstm(input: Tensor, hx: Any, params: Any, *options: Any) -> tuple[Tensor, ...] | None:
    """Return what ``torch.lstm`` does, for every client; None where the kernel does not serve or draws numbers."""
    if isinstance(params, bool) or len(options) != len(_OPTIONS):  # a packed sequence, or arguments by name
        return None
    given = dict(zip(_OPTIONS, options, strict=True))
    if not are_batched(input) or input.dim() != 3 or not _has_kernel(input, params, **given):
        return None
    batch_first = given.pop("batch_first")
    return tuple(for_all(partial(_client_by_client, given, batch_first), input, *hx, *params))


_OPTIONS = ("has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first")


def _has_kernel(
    input: Tensor,
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> bool:
    """Return whether oneDNN computes the layer, without random numbers of its own."""
    draws = train and dropout > 0 and num_layers > 1
    is_projected = len(params) != num_layers * (2 if bidirectional else 1) * (4 if has_biases else 2)
    is_meant = torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled)
    is_plain = input.device.type == "cpu" and input.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    return is_meant and is_plain and not draws and not is_projected


def _client_by_client(
    options: dict[str, Any], batch_first: bool, in_dims: Sequence[int | None], *tensors: Tensor
) -> list[tuple[Tensor, int]]:
    """Call the kernel for each client, and stack the results.

    Args:
        options: Arguments of ``torch.lstm`` behind the parameters.
        batch_first: Whether a client's sequences are ``[batch, time, features]``.
        in_dims: The place of the dimension S of each tensor; None for one that is the same for all clients.
        tensors: The sequences, the first hidden and cell states, and the parameters.
    """
    first = tensors[0].movedim(in_dims[0] or 0, 0)  # [S, ...]
    x = first.transpose(1, 2).contiguous() if batch_first else first
    others = [
        [tensor] * len(x) if dim is None else tensor.movedim(dim, 0).unbind()
        for tensor, dim in zip(tensors[1:], in_dims[1:], strict=True)
    ]
    found = [
        torch.lstm(own, (h, c), params, **options, batch_first=False)
        for own, h, c, *params in zip(x.unbind(), *others, strict=True)
    ]
    y, h, c = map(torch.stack, zip(*found, strict=True))
    return [(y.transpose(1, 2) if batch_first else y, 0), (h, 0), (c, 0)]
