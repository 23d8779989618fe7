"""What a function has computed so far, by the memory that it lies in."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef

from fedlightning.oracle.recording.names import is_large


class _Memory(NamedTuple):
    """Bytes from ``start`` up to ``stop``, which may serve others once their storage is gone; None if it is kept."""

    start: int
    stop: int
    storage: StorageWeakRef | None


class Results:
    """Tells whether a tensor that nobody has named lies in the memory of a result.

    No operation tells of other wrappers of a tensor, or of arrays and capsules that share its memory.
    """

    def __init__(self) -> None:
        """Begin without results."""
        self._small: list[Tensor] = []  # kept alive
        self._looked_at = 0
        self._memory: list[_Memory] = []

    def add(self, tensor: Tensor) -> None:
        """Take note of a result; large ones are not kept alive."""
        if not is_large(tensor):
            self._small.append(tensor)
        elif (storage := _storage(tensor)) is not None:
            self._memory.append(_memory(storage, StorageWeakRef(storage)))

    def may_include(self, tensor: Tensor) -> bool:
        """Return whether a tensor's memory is that of a result, or a part of it."""
        storages = map(_storage, self._small[self._looked_at :])
        self._memory += [_memory(storage) for storage in storages if storage is not None]
        self._looked_at = len(self._small)
        storage = _storage(tensor)
        if storage is None:
            return False
        start, stop, _ = _memory(storage)
        return any(
            start < each.stop and each.start < stop and (each.storage is None or not each.storage.expired())
            for each in self._memory
        )


def _memory(storage: torch.UntypedStorage, reference: StorageWeakRef | None = None) -> _Memory:
    start = storage.data_ptr()
    return _Memory(start, start + storage.nbytes(), reference)


def _storage(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return a tensor's storage; None if it has none to show, or an empty one.

    Wrappers of ``torch.func`` have none, nor the zeros that forward-mode derivatives begin with.
    """
    has_none = is_functorch_wrapped_tensor(tensor) or tensor._is_zerotensor()
    if has_none or tensor.layout != torch.strided or tensor.is_nested:
        return None
    storage = tensor.untyped_storage()
    return storage if storage.data_ptr() else None
