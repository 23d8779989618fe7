"""What stands in the places of a task's tensors while a backward pass runs.

An evaluation puts a client's tensors in the places of the task's own, and takes them away after the forward pass. What
reads the task in the backward pass (a hook on a tensor, activation checkpointing) would find the task's own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedlightning.core.modules import named_modules
from fedlightning.core.tree import flatten


class Absent(Tensor):
    """Has the shape, dtype and device of a tensor, and refuses all that would read or write its numbers.

    Attributes:
        refuse: Makes the error to raise.
    """

    refuse: Callable[[], Exception]

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def of(cls, tensor: Tensor, refuse: Callable[[], Exception]) -> Absent:
        """Return what stands for a tensor."""
        absent: Absent = Tensor._make_wrapper_subclass(cls, tensor.shape, dtype=tensor.dtype, device=tensor.device)
        absent.refuse = refuse
        return absent

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Refuse an operation."""
        raise next(each for each in flatten((args, kwargs or {}))[0] if isinstance(each, Absent)).refuse()


class Absence:
    """Takes the tensors of a task that clients have their own of away for a while."""

    def __init__(self, task: nn.Module, buffers: Collection[str], refuse: Callable[[str], Exception]) -> None:
        """Find their places.

        Args:
            task: The task; its trained parameters are taken away.
            buffers: Names of the buffers to take away.
            refuse: Makes the error to raise, with the name of the tensor.
        """
        self._places: list[tuple[dict[str, Tensor], str, Absent]] = []
        for place, module in named_modules(task):
            for held in (vars(module)["_parameters"], vars(module)["_buffers"]):
                for leaf, tensor in held.items():
                    name = f"{place}.{leaf}" if place else leaf
                    if tensor is not None and (tensor.requires_grad or name in buffers):
                        self._places.append((held, leaf, Absent.of(tensor, partial(refuse, name))))

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Put what refuses to be read in the tensors' places until the context ends."""
        present = [(held, leaf, held[leaf], absent) for held, leaf, absent in self._places if leaf in held]
        try:
            for held, leaf, _, absent in present:
                held[leaf] = absent
            yield
        finally:
            for held, leaf, tensor, _ in present:
                held[leaf] = tensor
