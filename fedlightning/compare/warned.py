"""What the runs of a comparison warn of: kept out of the progress bar, and in a file."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path


@contextlib.contextmanager
def quiet() -> Iterator[list[warnings.WarningMessage]]:
    """Keep notices out of the progress bar, and let errors pass.

    Yields:
        What this package warns of meanwhile: a loss that explodes, skipped rounds, clients that are left out, ...
    """
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")
            for category in (UserWarning, RuntimeWarning):
                warnings.filterwarnings("always", category=category, module=r"fedlightning\.")
            yield caught
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def kept(
    caught: Sequence[warnings.WarningMessage], file: Path, earlier: Sequence[str], writes: bool = True
) -> Iterator[None]:
    """Keep what a run warns of, however it ends, each message once.

    Args:
        caught: The warnings so far, which grow meanwhile.
        file: Where they are kept.
        earlier: Messages from before an interruption.
        writes: Whether this process writes the file, of several that share the run.
    """
    try:
        yield
    finally:
        messages = dict.fromkeys([*earlier, *(str(each.message) for each in caught)])
        if writes:
            file.write_text(json.dumps(list(messages), indent=1))
