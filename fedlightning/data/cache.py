"""Tensors that take long to make, kept in files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from fedlightning.federation.files.whole_files import write_whole


def stamp(path: Path) -> str:
    """Return a text that changes with a file, or with the files below a folder: by names, sizes and times of change."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    known = [(each.name, each.stat()) for each in files if each.is_file()]
    return "|".join(f"{name}:{found.st_size}:{found.st_mtime_ns}" for name, found in known)


def cached(path: Path | None, make: Callable[[], Tensor]) -> Tensor:
    """Return the tensor stored in a file, after making and writing the tensor if the file is missing.

    The tensor is written to a temporary file, which is then renamed: an interrupt leaves no partial file, and several
    processes that write at the same time do not disturb each other.

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
