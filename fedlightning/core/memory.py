"""Memory of this process that is freed and taken again at every step.

glibc gives blocks of more than 32 MiB, and free memory at the end of its heap, back to the system at once. The system
clears them page by page when they are taken again: for a network of 11 million parameters that was a third of a round.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""Parameters of ``mallopt``, from ``malloc.h``."""


def keep_freed_memory() -> bool:
    """Have this process keep freed memory, up to 2 GiB at the end of its heap, until it is given back.

    Returns:
        Whether that is so. It is not where the allocator is not glibc's, or its settings were chosen by environment
        variables (``GLIBC_TUNABLES``, ``MALLOC_TRIM_THRESHOLD_``, ...).
    """
    library = _glibc()
    if library is None or _chosen_by_the_user():
        return False
    return bool(library.mallopt(_MMAP_MAX, 0) and library.mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def give_back_freed_memory() -> None:
    """Undo :func:`keep_freed_memory`: give free memory back to the system, now and in future."""
    library = _glibc()
    if library is None or _chosen_by_the_user():
        return
    library.mallopt(_MMAP_MAX, 2**16)
    library.mallopt(_MMAP_THRESHOLD, 2**25)  # where glibc's own adjustment ends, which any setting turns off
    library.mallopt(_TRIM_THRESHOLD, 2**26)
    library.malloc_trim(0)


def give_back_what_is_free() -> None:
    """Give the memory that is free now back to the system, whether or not freed memory is kept from here on."""
    library = _glibc()
    if library is not None and not _chosen_by_the_user():
        library.malloc_trim(0)


def _glibc() -> Any:
    """Return the C library if it is glibc, else None."""
    names = getattr(os, "confstr_names", {})
    return ctypes.CDLL(None) if "CS_GNU_LIBC_VERSION" in names and os.confstr("CS_GNU_LIBC_VERSION") else None


def _chosen_by_the_user() -> bool:
    """Return whether the environment has settings of the allocator."""
    own = any(name.startswith("MALLOC_") and name.endswith("_") for name in os.environ)
    return own or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
