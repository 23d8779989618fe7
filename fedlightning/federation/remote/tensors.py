"""Tensors as raw arrays, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor

from fedlightning.federation.remote.packet import ITEM_SIZES, PacketError, RawArray

_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in ITEM_SIZES}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name under which a dtype travels.

    Raises:
        PacketError: If numbers of this dtype cannot travel.
    """
    if dtype not in _NAMES:
        raise PacketError(f"Numbers of {dtype} cannot travel; expected one of {', '.join(ITEM_SIZES)}.")
    return _NAMES[dtype]


def named_dtype(name: object) -> torch.dtype:
    """Return the dtype of a name.

    Raises:
        PacketError: If there is none.
    """
    if name not in _DTYPES:
        raise PacketError(f"There is no dtype {name!r}; expected one of {', '.join(ITEM_SIZES)}.")
    return _DTYPES[str(name)]


def to_raw(tensor: Tensor) -> RawArray:
    """Return a tensor's values, wherever it lies, as bytes."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return RawArray(dtype_name(tensor.dtype), tuple(tensor.shape), flat.view(torch.uint8).numpy().tobytes())


def from_raw(array: RawArray) -> Tensor:
    """Return the tensor of an array, in main memory.

    Raises:
        PacketError: If no tensor can have its shape.
    """
    dtype = named_dtype(array.dtype)
    if not array.data:
        try:
            return torch.empty(array.shape, dtype=dtype)
        except (RuntimeError, TypeError, OverflowError) as error:
            raise PacketError(f"An array has the shape {str(array.shape)[:80]}, which no tensor has.") from error
    return torch.frombuffer(bytearray(array.data), dtype=dtype).reshape(array.shape)
