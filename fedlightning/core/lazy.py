"""Packages whose public names are imported when they are first used.

Lightning, torchmetrics, torchvision and matplotlib take several seconds to import. Users who need only the algorithms,
the partitioners, or an answer to a misspelt command do not wait for these packages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, names: Mapping[str, str], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package that imports its public names on first use.

    Type checkers and readers cannot follow these, so the package repeats the imports under ``TYPE_CHECKING``.

    Args:
        package: Its name.
        names: Public names, separated by blanks, by the module within the package that defines them; a module of a
            sibling package begins with a dot.
        modules: Modules within the package that are reached as attributes without an import of their own.
    """
    homes = {name: module for module, listed in names.items() for name in listed.split()}

    def get(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(f".{homes[name]}", package), name)
            setattr(sys.modules[package], name, value)  # the next look-up does not come here
            return value
        if name in modules:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *modules})

    return get, listing
