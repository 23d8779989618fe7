"""Names of tensors while a function runs, told by their identity."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

from torch import Tensor

LARGE = 2**14
"""Numbers from which on a tensor is freed when the function has no use for it, as it would be without a name."""


Given = TypeVar("Given")


class Names(Generic[Given]):
    """Holds names of tensors. Small ones are kept alive, which is quicker than to ask whether they live."""

    def __init__(self) -> None:
        """Begin without names."""
        self._named: dict[int, tuple[Tensor | weakref.ref[Tensor], int, Given]] = {}

    def __setitem__(self, tensor: Tensor, name: Given) -> None:
        """Name a tensor."""
        self._named[id(tensor)] = weakref.ref(tensor) if is_large(tensor) else tensor, tensor._cdata, name

    def get(self, tensor: Tensor) -> Given | None:
        """Return the name of a tensor; None if it has none, has the id of one that was freed, or was swapped since."""
        found = self._named.get(id(tensor))
        if found is None:
            return None
        named, what, name = found
        is_it = named is tensor or (isinstance(named, weakref.ref) and named() is tensor)
        return name if is_it and tensor._cdata == what else None


def is_large(tensor: Tensor) -> bool:
    """Return whether a tensor is freed although it has a name."""
    return tensor.numel() >= LARGE
