"""What a function did to tensors, written down so that two calls of it can be compared, and kept from round to round.

A recording lives for one phase of one round, because nobody knows what an objective will do in the next. The first call
of the next round shows it. If that runs the same operations on the same results with the same numbers from Python, the
program that a recorder would write is the one that is known, and need not be written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_BY_TEXT = (bool, float, complex)
"""Numbers that are equal to others that they must not be taken for, as True and 1 are, or 0.0 and -0.0."""


@dataclass(frozen=True)
class Outline:
    """Says which operations ran on which tensors and numbers. Outlines are equal if replays would be the same.

    Attributes:
        operations: Every operation with its arguments.
        results: Which tensors the function returned.
        held: Tensors that existed before the call, which are told by their identity.
    """

    operations: list[Any]
    results: list[Any]
    held: list[Tensor] = field(compare=False)


class Draft:
    """Becomes an outline while a function runs."""

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        """Begin before the first operation.

        Args:
            inputs: Arguments of the function.
        """
        self._operations: list[Any] = []
        self._held: list[Tensor] = []
        self._names: dict[int, Any] = {}
        self._alive: list[Tensor] = []  # because ids of freed tensors are used again
        for tensor in inputs:
            self._call(tensor)

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """Write down an operation that has run."""
        named = [(name, self._form(value)) for name, value in kwargs.items()]
        self._operations.append((func, [self._form(value) for value in args], named))
        for result in (output,) if isinstance(output, Tensor) else output if isinstance(output, list | tuple) else ():
            if isinstance(result, Tensor):
                self._call(result)

    def finished(self, results: Iterable[Tensor]) -> Outline:
        """Return the outline of a function that returned ``results``."""
        return Outline(self._operations, [self._form(result) for result in results], self._held)

    def _form(self, value: Any) -> Any:
        """Return what stands for an argument."""
        if isinstance(value, Tensor):
            return self._names.get(id(value)) or self._hold(value)
        if isinstance(value, list | tuple):
            return [self._form(item) for item in value]
        return (type(value), repr(value)) if isinstance(value, _BY_TEXT) else value

    def _hold(self, tensor: Tensor) -> Any:
        strides = tensor.stride() if tensor.layout == torch.strided else None
        name = id(tensor), tensor.shape, strides, tensor.dtype, tensor.device
        self._held.append(tensor)
        self._names[id(tensor)] = name
        return name

    def _call(self, tensor: Tensor) -> None:
        self._alive.append(tensor)
        self._names[id(tensor)] = (len(self._alive),)
