"""Packages that only some users need, imported when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fedlightning.core.errors import MissingPackageError

EXTRAS = {
    "PIL": "vision",
    "dp_accounting": "privacy",
    "flwr": "flower",
    "matplotlib": "plots",
    "peft": "hf",
    "sklearn": "data",
    "tensorboard": "tensorboard",
    "torchvision": "vision",
    "transformers": "hf",
}
"""The extra of fedlightning that installs a package, by the name that is imported."""


def imported(module: str) -> Any:
    """Import a module of a package that is installed with an extra.

    Args:
        module: Its dotted name; the package is one of :data:`EXTRAS`.

    Raises:
        ModuleNotFoundError: If the package is not installed; the message names the extra.
    """
    package = module.partition(".")[0]
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise MissingPackageError(
            f"This needs the package '{package}'. {how_to_install(package)}", name=package
        ) from error


def how_to_install(package: str) -> str:
    """Return a sentence that says how a package is installed."""
    return f"Install it by pip install 'fedlightning[{EXTRAS[package]}]'."
