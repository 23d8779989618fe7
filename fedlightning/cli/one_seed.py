"""The one seed of a run, which is also that of its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlightning.cli.early import MistakeError, pairs
from fedlightning.core import strict_yaml

LARGEST = 2**32 - 1
"""Largest seed that NumPy takes."""


def require_one_seed(given: Sequence[str]) -> None:
    """Refuse a seed of the data, in an option or a config file: the parser would put that of the run in its place.

    A seed of the run that no generator takes is refused as well.

    Args:
        given: The arguments of a command.

    Raises:
        MistakeError: If the data have a seed of their own, or the seed of the run is out of range.
    """
    for argument, key, value in pairs(given):
        if key == "seed_everything" and type(value) is int and not 0 <= value <= LARGEST:
            raise MistakeError(f"seed_everything={value}: expected a seed from 0 to {LARGEST}.")
        if key in ("c", "config"):
            where, found = f"{value}: data.seed", _config_has_seed(value)
        else:
            where, named = argument, key in ("data.seed", "data.init_args.seed")
            found = value is not None if named else key in ("data", "data.init_args") and _has_seed(value, Path())
        if found:
            raise MistakeError(f"{where}: one seed makes a run, also of the data. Give seed_everything instead.")


def _config_has_seed(config: str) -> bool:
    """Return whether a config gives the data a seed: at the top, or in the section of a command."""
    content, folder = _read(config, Path())
    sections = content if isinstance(content, Mapping) else {}
    each = [sections, *(section for section in sections.values() if isinstance(section, Mapping))]
    return any(_has_seed(section["data"], folder) for section in each if "data" in section)


def _has_seed(data: Any, folder: Path) -> bool:
    """Return whether a section of the data, or the file that holds it, gives a seed."""
    if isinstance(data, str) and data.endswith((".yaml", ".yml", ".json")):
        data, folder = _read(data, folder)
    if not isinstance(data, Mapping):
        return False
    return data.get("seed") is not None or _has_seed(data.get("init_args"), folder)


def _read(config: str, folder: Path) -> tuple[Any, Path]:
    """Return what a config holds, a file or a text, and the folder from which paths in it count.

    The content is None if it cannot be read, which the parser will say.
    """
    is_text = "\n" in config or ": " in config or config.lstrip().startswith("{")
    path = folder / Path(config).expanduser()
    try:
        text = config if is_text else path.read_text(encoding="utf-8")
        return strict_yaml.parsed(text), folder if is_text else path.parent
    except (OSError, ValueError):  # no such file, no text, no YAML
        return None, folder
