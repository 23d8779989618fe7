"""Images in a layout that a layer chose, handed to what would show it: views, and means over many numbers.

Layers lay images out channels last (:mod:`fedlightning.oracle.layers.lone_layers`), which no objective knows of. Where
PyTorch takes a view of the usual layout alone, as ``x.view(len(x), -1)`` does, a copy in that layout is viewed. What is
written into such a view would not reach the image, as it does elsewhere, and is refused.

Batch normalisation of images that are channels last adds one number after the other. Over very many numbers that
loses two digits in single precision; their images are laid out in the usual way before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from fedlightning.core.errors import UsageError

VIEWS = frozenset({Tensor.view, Tensor.view_as, Tensor.as_strided, torch.as_strided})
"""Functions that see how a tensor lies in memory."""

NORMS = frozenset({F.batch_norm, torch.batch_norm})

MANY = 2**15
"""Numbers of a channel from which on batch normalisation is to see images in the usual layout."""


class Views(TorchFunctionMode):
    """Base of modes whose layers choose layouts; it views copies in the usual layout where it must."""

    def __init__(self) -> None:
        super().__init__()
        self._copies: list[Tensor] = []

    def view(self, func: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return a view of a tensor, or of its copy in the usual layout.

        Args:
            func: One of :data:`VIEWS`.
            x: The tensor.
            *args: What the function takes beside it.
            **kwargs: Likewise.
        """
        any_layout = func in (Tensor.view, Tensor.view_as)
        if any_layout or is_functorch_wrapped_tensor(x) or not _is_channels_last(x):
            try:
                seen: Tensor = func(x, *args, **kwargs)
                return seen
            except RuntimeError:
                if not any_layout:
                    raise
        viewed: Tensor = func(compact(x), *args, **kwargs)
        self._copies.append(_innermost(viewed))
        return viewed

    def __exit__(self, kind: Any, *rest: Any) -> None:
        """Leave the mode.

        Raises:
            UsageError: If something was written into a copy.
        """
        super().__exit__(kind, *rest)
        copies, self._copies = self._copies, []
        if kind is None and any(copy._version for copy in copies):
            raise UsageError(
                "the objective writes into a view of an image that convolutions laid out in their own way, which "
                "would not change the image. Write into a copy: x.view(...).clone()"
            )


def exact_norm(func: Callable[..., Any], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Normalise a batch of images, in the usual layout if its mean is one of very many numbers."""
    training = kwargs.get("training", args[4] if len(args) > 4 else False)  # the sixth of both functions
    if training and x.dim() == 4 and x.numel() >= MANY * x.shape[1] and not _innermost(x).is_contiguous():
        x = compact(x)
    result: Tensor = func(x, *args, **kwargs)
    return result


def compact(x: Tensor) -> Tensor:
    """Return a contiguous copy."""
    return x.clone(memory_format=torch.contiguous_format)


def _is_channels_last(x: Tensor) -> bool:
    return x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)


def _innermost(x: Tensor) -> Tensor:
    while is_functorch_wrapped_tensor(x):
        x = get_unwrapped(x)
    return x
