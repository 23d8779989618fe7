"""The one seed of a run, which is also that of its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlightning.cli.early import MistakeError, pairs
from fedlightning.core import strict_yaml


def require_one_seed(given: Sequence[str]) -> None:
    """Refuse a seed of the data, in an option or a config file: the parser would put that of the run in its place.

    Args:
        given: The arguments of a command.

    Raises:
        MistakeError: If the data have a seed of their own.
    """
    for argument, key, value in pairs(given):
        where, is_file = argument, key in ("c", "config")
        if is_file:
            where, content = f"{value}: data.seed", _content_of(value)
            value = content.get("data") if isinstance(content, Mapping) else None
        if key in ("data.seed", "data.init_args.seed") or (
            (is_file or key in ("data", "data.init_args")) and _has_seed(value)
        ):
            raise MistakeError(f"{where}: one seed makes a run, also of the data. Give seed_everything instead.")


def _has_seed(data: Any) -> bool:
    """Return whether a section of the data, or the file that holds it, gives a seed."""
    found = _content_of(data) if isinstance(data, str) and data.endswith((".yaml", ".yml", ".json")) else data
    return isinstance(found, Mapping) and ("seed" in found or _has_seed(found.get("init_args")))


def _content_of(config: str) -> Any:
    """Return what a config holds, a file or a text; None if it cannot be read, which the parser will say."""
    try:
        is_text = "\n" in config or config.lstrip().startswith("{")
        return strict_yaml.parsed(config if is_text else Path(config).expanduser().read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, strict_yaml.YamlError):
        return None
