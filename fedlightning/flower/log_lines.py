"""Lines of a log with the time, as services write them."""

from __future__ import annotations

import logging
import sys


def begin_log(process: str) -> None:
    """Write messages of this process to standard error, each with the time and the name of the process.

    Args:
        process: Its name in the lines.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {process} %(levelname)s: %(message)s"))
    log = logging.getLogger("fedlightning")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    logging.captureWarnings(True)
    logging.getLogger("py.warnings").handlers = [handler]
