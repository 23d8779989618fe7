"""Number of threads on which PyTorch computes.

``torch.set_num_threads`` also tells MKL how many threads to take, and to take them always. Attention divides its heads
among the threads and multiplies small matrices on each of them; told so, MKL asks for threads there as well, and waits
for what it does not get: twice as long as before, on two cores. So MKL's own settings are put back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import torch

_OUTSIDE: ContextVar[int | None] = ContextVar("threads of PyTorch outside all contexts of this module", default=None)
_OWN_CHOICE = 0
"""MKL's number of threads for this thread where it takes as many as OpenMP does, and fewer below OpenMP."""


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
    outside = _OUTSIDE.get()
    _OUTSIDE.set(outside or present)
    set_threads(threads)
    try:
        yield
    finally:
        set_threads(present)
        _OUTSIDE.set(outside)  # a token would be refused in another context, where a generator may end


@contextmanager
def up_to(threads: int) -> Iterator[None]:
    """Have PyTorch compute on a number of threads, more than at present but not more than it takes outside."""
    with exactly(min(threads, _OUTSIDE.get() or torch.get_num_threads())):
        yield


def set_threads(threads: int) -> None:
    """Have PyTorch compute on a number of threads from now on; MKL goes on to choose its own if it does now."""
    mkl = mkl_library()
    if mkl is None:
        torch.set_num_threads(threads)
        return
    chooses, own = mkl.mkl_serv_get_dynamic(), mkl.MKL_Set_Num_Threads_Local(_OWN_CHOICE)
    torch.get_num_threads()  # a new thread tells MKL again what was set, with the first that it asks or computes
    torch.set_num_threads(threads)
    mkl.MKL_Set_Dynamic(chooses)
    if own == _OWN_CHOICE:
        mkl.MKL_Set_Num_Threads_Local(_OWN_CHOICE)


@cache
def mkl_library() -> Any:
    """Return the library with MKL inside PyTorch; None where there is none, or none whose settings can be read."""
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    except OSError:
        return None
    names = ("mkl_serv_get_dynamic", "MKL_Set_Dynamic", "MKL_Set_Num_Threads_Local")
    return library if all(hasattr(library, name) for name in names) else None
