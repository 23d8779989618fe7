"""Values whose numbers lie in a block of memory: NumPy's and Python's arrays, bytes, memory maps, those of ctypes."""

from __future__ import annotations

import ctypes
import mmap
import zlib
from array import array
from copy import copy
from typing import Any

import numpy as np

BUFFERS = (np.ndarray, array, bytearray, memoryview, mmap.mmap, ctypes.Array, ctypes.Structure, ctypes.Union)
_GROWING = (array, bytearray)
_MEGABYTE, _GIGABYTE = 2**20, 2**30
_SAMPLE = 1000


def objects_in(value: Any) -> list[Any] | None:
    """Return the objects that an array of Python objects holds, in a row; None for other values."""
    return list(value.flat) if isinstance(value, np.ndarray) and value.dtype.kind == "O" else None


def checksum(value: Any, whole: bool = False) -> Any:
    """Return what tells whether numbers have changed; None for memory that nobody may write into through the value.

    Args:
        value: One of :data:`BUFFERS`.
        whole: Whether all numbers up to a gigabyte are looked at; otherwise a sample above a megabyte.
    """
    numbers = _numbers(value)
    if numbers is None:
        return None
    if numbers.dtype.hasobject:
        return tuple(map(id, numbers.flat))
    shape = numbers.shape
    if numbers.nbytes > (_GIGABYTE if whole else _MEGABYTE):
        numbers = numbers.reshape(-1)[:: max(1, numbers.size // _SAMPLE)]
    return shape, zlib.crc32(np.ascontiguousarray(numbers).view(np.uint8).data) if numbers.size else 0


def copied(value: Any, most: float) -> Any:
    """Return a copy of up to so many numbers; None of more, and of more than a gigabyte."""
    numbers = _numbers(value)
    if numbers is None or numbers.size > most or numbers.nbytes > _GIGABYTE:
        return None
    return copy(value) if isinstance(value, _GROWING) else numbers.copy()


def overwrite(value: Any, content: Any) -> None:
    """Write what was copied back into a value."""
    if isinstance(value, _GROWING):
        value[:] = content
    else:
        np.copyto(_numbers(value), content)


def _numbers(value: Any) -> Any:
    """Return the memory of a value as an array; None if it is closed or cannot be written into."""
    if isinstance(value, np.ndarray):
        found = value
    else:
        try:
            found = np.asarray(value) if isinstance(value, memoryview) else np.frombuffer(value, np.uint8)
        except ValueError:
            return None
    return found if found.flags.writeable else None
