"""What a function did to tensors, written down so that two calls of it can be compared.

A recording lives for one phase of one round, because nobody knows what an objective will do in the next. The first call
of the next round shows it. If that runs the same operations on the same tensors and numbers, a recorder would write the
program that is known already. For this, all that a recorder decides must follow from what an outline says; whoever lets
it look at something else has to add that here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedlightning.oracle.recording.names import Names
from fedlightning.oracle.sight import Sight

_BY_TEXT = (bool, float, complex)
"""Numbers that are equal to others that they must not be taken for, as True and 1 are, or 0.0 and -0.0."""

_BY_VALUE = (int, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Arguments that are compared as they are. All others are told by their identity."""


@dataclass(frozen=True)
class Outline:
    """Says which operations ran on which tensors and numbers. Outlines are equal if replays would be the same.

    Attributes:
        operations: Every operation with its arguments, and how autograd sees it.
        results: Which tensors the function returned.
        held: What existed before the call and is told by its identity: tensors, mostly.
    """

    operations: list[Any]
    results: list[Any]
    held: list[Any] = field(compare=False)


def flat(results: Iterable[Any]) -> list[Any]:
    """Return the results of an operation, of which some may be lists (a recurrent layer's gradients), in one list."""
    return [each for result in results for each in (result if isinstance(result, list | tuple) else (result,))]


class Draft:
    """Becomes an outline while a function runs."""

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        """Begin before the first operation.

        Args:
            inputs: Arguments of the function.
        """
        self._operations: list[Any] = []
        self._held: list[Any] = []
        self._names: Names[Any] = Names()
        self._count = 0
        for tensor in inputs:
            self._name(tensor)

    def note(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """Write down an operation that has run."""
        named = [(name, self._form(value)) for name, value in kwargs.items()]
        self._operations.append((func, [self._form(value) for value in args], named, Sight.now()))
        for result in flat(output) if isinstance(output, list | tuple) else (output,):
            if isinstance(result, Tensor):
                self._name(result)

    def finished(self, results: Iterable[Tensor]) -> Outline:
        """Return the outline of a function that returned ``results``."""
        return Outline(self._operations, [self._form(result) for result in results], self._held)

    def _form(self, value: Any) -> Any:
        """Return what stands for an argument."""
        if isinstance(value, Tensor):
            return self._names.get(value) or self._name_from_outside(value)
        if isinstance(value, list | tuple):
            return [self._form(item) for item in value]
        if isinstance(value, _BY_TEXT):
            return type(value), repr(value)
        if isinstance(value, _BY_VALUE):
            return value
        self._held.append(value)
        return object, id(value)

    def _name_from_outside(self, tensor: Tensor) -> Any:
        """Name a tensor from before the call, by what it is and how it lies in memory; of some not all is known."""
        name: Any = object()  # equal to no other
        if type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided and not tensor.is_nested:
            lies = tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg()
            name = Tensor, id(tensor), *lies, tensor.dtype, tensor.device
        self._held.append(tensor)
        self._names[tensor] = name
        return name

    def _name(self, tensor: Tensor) -> None:
        """Name an input or a result, by a number."""
        self._count += 1
        self._names[tensor] = int, self._count
