"""Tensors that take long to make, kept in files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedlightning.federation.whole_files import write_whole


def cached(path: Path | None, make: Callable[[], Tensor]) -> Tensor:
    """The tensor in a file; if there is none, it is made and written.

    Written beside the file and then renamed: an interrupt leaves no half of it, and of several processes that write it
    at the same time none disturbs another.

    Args:
        path: The file; None to make the tensor every time.
        make: Makes the tensor.
    """
    if path is not None and path.is_file():
        return torch.load(path, weights_only=True)  # type: ignore[no-any-return]
    tensor = make()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(tensor, path)
    return tensor
