"""The user's own code that a run is made of: its results belong to that code, not to any other of the same names."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from sysconfig import get_path
from types import ModuleType
from typing import Any

import fedlightning


def own_code(values: Any) -> str:
    """Return a digest of the code behind the classes of a configuration that no package has installed.

    It is that of the modules that define them, and of the modules of the user's that these import. Comments and blank
    lines do not count. Empty if all classes are installed.

    Args:
        values: The configuration in plain types, with classes and functions by their dotted paths. What it names has
            been imported.
    """
    found: dict[str, ast.Module] = {}
    for path in _paths(values):
        _collect(path, found)
    dumps = [ast.dump(tree) for _, tree in sorted(found.items())]
    return hashlib.sha256("\n".join(dumps).encode()).hexdigest() if dumps else ""


def _paths(values: Any) -> Iterator[str]:
    """Yield every string that may be a dotted path."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, list | tuple):
        for value in values:
            yield from _paths(value)
    elif isinstance(values, str) and "." in values and values.replace(".", "").isidentifier():
        yield values


def _collect(path: str, found: dict[str, ast.Module]) -> None:
    """Add the source of the user's module that a dotted path leads into, and of those of the user's that it imports."""
    parts = path.split(".")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    module = next((sys.modules[name] for name in names if name in sys.modules), None)
    if module is None or module.__name__ in found or not _is_own(module):
        return
    found[module.__name__] = tree = ast.parse(Path(str(module.__file__)).read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            origin = f"{_origin(node, module)}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                _collect(f"{origin}{alias.name}", found)


def _origin(node: ast.ImportFrom, module: ModuleType) -> str:
    """Return the full name of the module from which another one imports."""
    name = "." * node.level + (node.module or "")
    return resolve_name(name, module.__package__ or "") if node.level else name


def _is_own(module: ModuleType) -> bool:
    """Return whether a module is a source file outside of Python, installed packages and this package."""
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        return False
    return not any(Path(file).resolve().is_relative_to(folder) for folder in _installed())


@cache
def _installed() -> list[Path]:
    """Return the folders of Python, of installed packages and of this package."""
    folders = [get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [Path(folder).resolve() for folder in (*folders, *fedlightning.__path__)]
