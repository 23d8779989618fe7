"""Tensors that take long to make, kept in files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from fedlightning.federation.files.whole_files import write_whole


def fingerprint(files: Iterable[Path], *options: object) -> str:
    """Return a short text that changes with files, by their places, sizes and times of change, and with options."""
    known = [(path.resolve(), path.stat()) for path in files]
    texts = [*(f"{path}:{found.st_size}:{found.st_mtime_ns}" for path, found in known), *map(str, options)]
    return hashlib.sha256("|".join(texts).encode()).hexdigest()[:12]


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
