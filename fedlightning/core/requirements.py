"""Packages that only some users need, imported when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedlightning.core.errors import MissingPackageError

EXTRAS = {"transformers": "hf", "peft": "hf"}
"""The extra of fedlightning that installs a package."""


def imported(package: str) -> Any:
    """Import a package that is installed with an extra.

    Args:
        package: Its name, one of :data:`EXTRAS`.

    Raises:
        ModuleNotFoundError: If it is not installed; the message names the extra.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingPackageError(
            f"This needs the package '{package}'. Install it by pip install 'fedlightning[{EXTRAS[package]}]'.",
            name=package,
        ) from error
