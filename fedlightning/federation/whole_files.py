"""Files that are either whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


def write_whole(value: Any, target: Path) -> None:
    """``torch.save`` to a file that is either whole or not there, nor anything beside it.

    Raises:
        OSError: If it cannot be written.
    """
    partial = target.with_name(f"{target.name}.partial-{os.getpid()}")
    try:
        with partial.open("wb") as file:
            torch.save(value, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    except RuntimeError as error:  # torch ends its archive nonetheless, and that second error is the one that arrives
        for cause in _chain(error):
            if isinstance(cause, OSError) or not isinstance(cause, Exception):
                raise cause from None
        raise
    finally:
        partial.unlink(missing_ok=True)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
