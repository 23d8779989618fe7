"""Values whose numbers lie in a block of memory: NumPy's and Python's arrays, bytes, memory maps, those of ctypes."""

from __future__ import annotations

import ctypes
import mmap
import zlib
from array import array
from copy import copy
from typing import Any

import numpy as np

BUFFERS = (np.ndarray, array, bytearray, memoryview, mmap.mmap, ctypes.Array)
_GROWING = (array, bytearray)
_NUMBERS = frozenset(("Zf", "Zd", "Zg", *"bBhHiIlLqQefdg?c"))
"""Formats of memory that holds numbers and no addresses."""
_MEGABYTE = 2**20
_SAMPLE = 1000


def objects_in(value: Any) -> list[Any] | None:
    """Return the objects that an array of Python objects holds, in a row; None for other values."""
    return list(value.flat) if isinstance(value, np.ndarray) and value.dtype.kind == "O" else None


def checksum(value: Any, whole: bool = False) -> Any:
    """Return what tells whether numbers have changed; None for memory that nobody may write into through the value.

    Args:
        value: One of :data:`BUFFERS`.
        whole: Whether all numbers are looked at; otherwise a sample above a megabyte.
    """
    numbers = _numbers(value)
    if numbers is None:
        return None
    mask = checksum(np.ma.getmaskarray(value), whole) if isinstance(value, np.ma.MaskedArray) else None
    shape = numbers.shape
    if numbers.nbytes > _MEGABYTE and not whole:
        numbers = numbers.reshape(-1)[:: max(1, numbers.size // _SAMPLE)]
    numbers = np.ascontiguousarray(numbers)
    content = numbers.tobytes() if numbers.dtype.hasobject or not numbers.size else numbers.view(np.uint8).data
    return shape, zlib.crc32(content), mask


def copied(value: Any, most_bytes: float) -> Any:
    """Return a copy of up to so many bytes; None of more, and of what cannot be written into."""
    numbers = _numbers(value)
    if numbers is None or numbers.nbytes > most_bytes:
        return None
    return copy(value) if isinstance(value, (*_GROWING, np.ndarray)) else numbers.copy()


def overwrite(value: Any, content: Any) -> None:
    """Write what was copied back into a value, unless it has been closed since."""
    if isinstance(value, _GROWING):
        value[:] = content
    elif isinstance(value, np.ma.MaskedArray):
        np.copyto(value.data, content.data)
        value.mask = content.mask
    elif isinstance(value, np.ndarray):
        writeable = value.flags.writeable
        value.flags.writeable = True
        np.copyto(value, content)
        value.flags.writeable = writeable
    else:
        numbers = _numbers(value)
        if numbers is not None:
            np.copyto(numbers, content)


def _numbers(value: Any) -> Any:
    """Return the memory of a value as an array; None if it is closed, holds addresses, or cannot be written into."""
    if isinstance(value, np.ndarray):
        found = np.asarray(value)
        return found if found.flags.writeable or found.flags.owndata else None  # whose owner may allow it again
    try:
        with memoryview(value) as view:
            if view.readonly or view.format.lstrip("<>=@") not in _NUMBERS:
                return None
        return np.asarray(value) if isinstance(value, memoryview) else np.frombuffer(value, np.uint8)
    except ValueError:  # closed
        return None
