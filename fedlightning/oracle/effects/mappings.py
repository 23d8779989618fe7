"""Mappings that are no dicts: the environment, and dictionaries whose keys may die."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, ref

ENVIRONMENT = type(os.environ)
OTHER_MAPPINGS = (WeakKeyDictionary, ENVIRONMENT)
READS_ENVIRONMENT = frozenset(("environ", "getenv", "putenv", "unsetenv"))
"""Names of ``os`` by which code reaches the environment."""


def items_of(mapping: Any) -> dict[Any, Any]:
    """Return what a mapping holds; by references to its keys if these are weak, so that they may still die."""
    if isinstance(mapping, WeakKeyDictionary):
        return {weak: mapping[weak()] for weak in mapping.keyrefs() if weak() in mapping}
    return dict(mapping)


def living(held: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return those items of :func:`items_of` whose keys are still there."""
    return {key: part for key, part in held.items() if _key(key) is not None}


def refill(mapping: Any, held: Mapping[Any, Any]) -> None:
    """Have a mapping hold what it held, item by item, as others may read it meanwhile."""
    present = items_of(mapping)
    for key in present.keys() - held.keys():
        del mapping[_key(key)]
    for key, part in living(held).items():
        if key not in present or present[key] is not part:
            mapping[_key(key)] = part


def _key(key: Any) -> Any:
    return key() if isinstance(key, ref) else key
