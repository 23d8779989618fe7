"""Hyper-parameters that may differ by block, and how the fields of a dataclass declare them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from fedlightning.core.errors import InvalidTypeError
from fedlightning.core.schedule import Schedule

if TYPE_CHECKING:
    PerBlock: TypeAlias = Any  # once an algorithm is bound, arithmetic on it is that of a number or a vector
else:
    PerBlock: TypeAlias = float | Schedule | Sequence[float | Schedule] | Mapping[str, float | Schedule]
"""A hyper-parameter that may differ by block: one number, a pair ``[min, max]``, or ``{name prefix: number}``
(the longest prefix wins, ``default`` covers the rest). Each number may be a schedule over rounds."""


def per_block(default: Any = MISSING, constant: str | None = None, **options: Any) -> Any:
    """Declares a hyper-parameter that may differ by block: a number, a pair ``[min, max]``, or numbers by name prefix.

    ``lr: PerBlock = per_block()``; :meth:`fedlightning.algorithms.Algorithm.bind` turns the value into a number or a
    vector ``[d]``. Binding goes by this declaration, however the annotation is spelt.

    Args:
        default: Value if none is given; a field without a default must be given.
        constant: Why it stays the same in every round, as a clause; None if it takes schedules.
        options: As for ``dataclasses.field``.
    """
    metadata = {"per_block": True} if constant is None else {"per_block": True, "constant": constant}
    return field(default=default, metadata=metadata, **options)


def name_prefix(default: str | None = None) -> Any:
    """Declares a hyper-parameter that is the name prefix of a block of parameters.

    Args:
        default: Value if none is given.
    """
    return field(default=default, metadata={"name_prefix": True})


def is_name_prefix(owner: type[Any], name: str) -> bool:
    """Return whether a hyper-parameter is the name prefix of a block, by :func:`name_prefix`.

    A subclass may declare it once more, with a default of its own alone.

    Args:
        owner: A dataclass.
        name: Of a field of it.
    """
    declared = (vars(base).get("__dataclass_fields__", {}).get(name) for base in owner.__mro__)
    return any(each is not None and each.metadata.get("name_prefix") for each in declared)


def per_block_fields(algorithm: type[Any]) -> list[str]:
    """Lists the hyper-parameters of a dataclass that may differ by block.

    Raises:
        TypeError: If a field is annotated ``PerBlock`` and not made by :func:`per_block`: nothing would spread its
            value over the blocks.
    """
    for each in fields(algorithm):
        if takes_blocks(each) and not _is_declared(each):
            raise InvalidTypeError(
                f"{algorithm.__name__}.{each.name} is declared PerBlock, but nothing spreads it over the blocks. Write "
                f"{each.name}: PerBlock = per_block(), or per_block(default)."
            )
    return [each.name for each in fields(algorithm) if _is_declared(each)]


def takes_blocks(declared: Field[Any]) -> bool:
    """True if a field takes several numbers, by :func:`per_block` or by an annotation that contains ``PerBlock``.

    Annotations are text or types, depending on ``from __future__ import annotations`` in the user's module.
    """
    if _is_declared(declared):
        return True
    if isinstance(declared.type, str):
        return re.search(r"\bPerBlock\b", declared.type) is not None
    return set(get_args(PerBlock)) <= set(get_args(declared.type))


def _is_declared(declared: Field[Any]) -> bool:
    return bool(declared.metadata.get("per_block"))
