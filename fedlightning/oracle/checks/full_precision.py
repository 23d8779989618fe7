"""Comparisons on a GPU in full float32.

There, convolutions round their inputs to TF32's ten bits unless told otherwise. Deep networks turn that rounding into
per cents of a gradient, for which a right way would be given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.backends import cuda


@contextmanager
def in_full_precision(device: torch.device) -> Iterator[None]:
    """Compute float32 without TF32 on a GPU; elsewhere nothing changes.

    Args:
        device: Where tensors lie.
    """
    put_back = _without_tf32() if device.type == "cuda" else []
    try:
        yield
    finally:
        for undo in put_back:
            undo()


def _without_tf32() -> list[Callable[[], None]]:
    """Switch TF32 off, and return what restores the present state.

    PyTorch has two sets of switches, and reading the older ones fails once a user has set the newer ones.
    """
    cudnn: Any = torch.backends.cudnn  # stubs lack the newer switches
    try:
        convolutions, _, products = cudnn.allow_tf32, cuda.matmul.allow_tf32, torch.get_float32_matmul_precision()
    except RuntimeError:
        return [_switched(each, "ieee") for each in (cudnn.conv, cudnn.rnn, cuda.matmul)]
    cudnn.allow_tf32 = False
    put_back = [lambda: setattr(cudnn, "allow_tf32", convolutions)]
    if products != "highest":
        torch.set_float32_matmul_precision("highest")
        put_back.append(lambda: torch.set_float32_matmul_precision(products))
    return put_back


def _switched(setting: Any, precision: str) -> Callable[[], None]:
    before = setting.fp32_precision
    setting.fp32_precision = precision
    return lambda: setattr(setting, "fp32_precision", before)
