"""The logger of runs that choose none: TensorBoard's, or a table of metrics where TensorBoard is not installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any


def default_logger() -> dict[str, Any]:
    """Return class path and arguments of the logger; nothing is imported to find out."""
    arguments = {"save_dir": "runs", "name": ""}
    if tensorboard_is_installed():
        return _logger("TensorBoardLogger", {**arguments, "default_hp_metric": False})
    return _logger("CSVLogger", arguments)


def tensorboard_is_installed() -> bool:
    """Return whether TensorBoard can be imported."""
    return find_spec("tensorboard") is not None


def _logger(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"class_path": f"lightning.pytorch.loggers.{name}", "init_args": arguments}
