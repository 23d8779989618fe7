"""Tensors of all clients below a ``vmap``, taken out of it and put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._C._functorch import (
    _add_batch_dim,
    get_unwrapped,
    is_batchedtensor,
    maybe_current_level,
    maybe_get_bdim,
    maybe_get_level,
)
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

ForAll = Callable[..., Sequence[tuple[Tensor, int]]]
"""``(in_dims, *args)``: computes for all clients at once, and returns each result with the place of its dimension S.

``in_dims`` has one entry for each argument: the place of the dimension S of a tensor; None if there is none.
"""


def are_batched(*tensors: Any) -> bool:
    """Return whether the innermost transformation, the objective's own or ours, is a ``vmap`` over all tensors."""
    if not all(isinstance(x, Tensor) and is_batchedtensor(x) for x in tensors):
        return False
    level = maybe_current_level()
    return all(maybe_get_level(x) == level for x in tensors)


def for_all(compute: ForAll, *args: Any) -> list[Tensor]:
    """Compute below the innermost ``vmap``, over which all tensors in the arguments are batched, if at all."""
    level = maybe_current_level()
    assert level is not None
    in_dims = [maybe_get_bdim(each) if _is_of(each, level) else None for each in args]
    plain = [get_unwrapped(each) if _is_of(each, level) else each for each in args]
    with retrieve_current_functorch_interpreter().lower():
        results = compute(in_dims, *plain)
    return [_add_batch_dim(result, dim, level) for result, dim in results]


def first(tensor: Tensor, dim: int) -> Tensor:
    """Return the tensor with the dimension S, which is at ``dim``, in the first place; itself where it is there."""
    return tensor.movedim(dim, 0) if dim else tensor


def _is_of(value: Any, level: int) -> bool:
    return isinstance(value, Tensor) and is_batchedtensor(value) and maybe_get_level(value) == level
