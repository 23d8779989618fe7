"""Nested mappings, lists, tuples and dataclasses of tensors, the structure of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from torch import Tensor

from fedlightning.core.errors import InvalidTypeError

Structure = Any
"""A hashable description of the nesting; None stands for one tensor."""


@dataclass(frozen=True)
class _Made:
    """Describes an object that is made anew from its parts: a mapping that is no dict, or a dataclass."""

    kind: type
    names: tuple[Any, ...]
    by_keyword: bool

    def of(self, values: list[Any]) -> Any:
        parts = dict(zip(self.names, values, strict=True))
        return self.kind(**parts) if self.by_keyword else self.kind(parts)


def flatten(data: Any) -> tuple[list[Tensor], Structure]:
    """Return the tensors of ``data`` in order, and the structure of the nesting.

    Raises:
        TypeError: If ``data`` contains anything but tensors in mappings, lists, tuples and dataclasses.
    """
    if isinstance(data, Tensor):
        return [data], None
    names: Any
    if isinstance(data, dict):
        names, parts = tuple(data), list(data.values())
    elif isinstance(data, list | tuple):
        names, parts = type(data), list(data)
    elif isinstance(data, Mapping):  # such as the BatchEncoding of transformers
        names, parts = _Made(type(data), tuple(data), by_keyword=False), list(data.values())
    elif is_dataclass(data) and not isinstance(data, type):
        given = tuple(each.name for each in fields(data) if each.init)
        names, parts = _Made(type(data), given, by_keyword=True), [getattr(data, name) for name in given]
    else:
        raise InvalidTypeError(
            f"A batch holds {type(data).__name__} {data!r}; federated batches are tensors in dicts, lists and tuples. "
            "Encode it as a tensor in the data set, or leave it out there."
        )
    if all(isinstance(part, Tensor) for part in parts):  # the common case, met at every local step
        return parts, (names, len(parts))
    leaves: list[Tensor] = []
    structures = []
    for part in parts:
        own, structure = flatten(part)
        leaves += own
        structures.append((len(own), structure))
    return leaves, (names, tuple(structures))


def unflatten(leaves: list[Any], structure: Structure) -> Any:
    """Nest ``leaves`` as ``structure`` says; the inverse of :func:`flatten`, with leaves of any type."""
    if structure is None:
        return leaves[0]
    names, parts = structure
    if not isinstance(parts, int):
        values, start = [], 0
        for count, part in parts:
            values.append(unflatten(leaves[start : start + count], part))
            start += count
    else:
        values = list(leaves)
    if isinstance(names, tuple):
        return dict(zip(names, values, strict=True))
    if isinstance(names, _Made):
        return names.of(values)
    return names(*values) if hasattr(names, "_fields") else names(values)


def map_tensors(function: Callable[..., Any], data: Any, *others: Any) -> Any:
    """Return ``data`` with every tensor replaced by the result of ``function``.

    Args:
        function: Takes a tensor of ``data`` and the tensors at the same place in each of the ``others``.
        data: Tensors in nested mappings, lists, tuples and dataclasses.
        others: Further data of the same structure.

    Raises:
        TypeError: If the structures differ, be it in the order of a dict's keys.
    """
    leaves, structure = flatten(data)
    columns = [leaves]
    for other in others:
        theirs, nesting = flatten(other)
        if nesting != structure:
            raise InvalidTypeError(
                f"Samples that belong together are nested differently: {_described(data)} beside {_described(other)}. "
                "Let every client's data set return one structure, dicts with the same keys in the same order."
            )
        columns.append(theirs)
    return unflatten([function(*column) for column in zip(*columns, strict=True)], structure)


def _described(data: Any) -> str:
    """Return the outer structure of ``data``, for messages."""
    if isinstance(data, dict):
        return f"a dict of {', '.join(map(repr, data))}"
    return f"a {type(data).__name__} of {len(data)}" if isinstance(data, list | tuple) else "a tensor"
