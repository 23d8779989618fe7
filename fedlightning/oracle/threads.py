"""Number of threads on which PyTorch computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def limited(threads: int | None) -> Iterator[None]:
    """Limit PyTorch to a number of threads, at most its present number; None leaves the number unchanged."""
    if threads is None or threads >= torch.get_num_threads():
        yield
        return
    with exactly(threads):
        yield


@contextmanager
def exactly(threads: int) -> Iterator[None]:
    """Have PyTorch compute on a number of threads, fewer or more than at present."""
    present = torch.get_num_threads()
    if threads == present:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(present)
