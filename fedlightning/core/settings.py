"""How messages name settings, so that advice serves in Python and on the command line alike."""

from __future__ import annotations

from collections.abc import Mapping


def settings(values: Mapping[str, object]) -> str:
    """Return settings as they are written in Python and, in parentheses, on the command line.

    Args:
        values: By key of the command line, such as ``model.algorithm.lr``; ``...`` for a value that is left open.

    Example:
        >>> settings({"trainer.val_check_interval": 4, "trainer.check_val_every_n_epoch": None})
        'val_check_interval=4 and check_val_every_n_epoch=None (--trainer.val_check_interval=4 --trainer.check_val_every_n_epoch=null)'
        >>> settings({"model.algorithm.lr": ...})
        'lr (--model.algorithm.lr=...)'
    """  # noqa: E501
    names = [
        key.rpartition(".")[2] if value is ... else f"{key.rpartition('.')[2]}={value!r}"
        for key, value in values.items()
    ]
    options = [f"--{key}={'...' if value is ... else _in_yaml(value)}" for key, value in values.items()]
    return f"{' and '.join(names)} ({' '.join(options)})"


def _in_yaml(value: object) -> str:
    """Return a plain value as it is written in a configuration."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
