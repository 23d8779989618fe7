"""A limit on the time of one answer, after which the process that computes it ends."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator
from contextlib import contextmanager

_TIMES = 3.0
_AT_LEAST = 600.0
_AT_MOST = 30 * 86400.0


def limit_of(waits: float = 0.0, longest: float | None = None) -> float:
    """Return how many seconds a process may take for one answer.

    An answer that comes late is not lost, as it is kept and a repeated request gets it. So the limit is well above the
    time that somebody waits for it, and there to end what would never end.

    Args:
        waits: Seconds for which the answer is waited for; what came over the network may say anything.
        longest: The limit that the node's config sets; None for three times ``waits``, and at least ten minutes.
    """
    return min(max(_AT_LEAST, _TIMES * waits) if longest is None else longest, _AT_MOST)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End this process if a ``with`` block takes longer, and write to standard error where each thread was.

    This needs no help of what hangs: a loop in compiled code that never lets other threads run is ended, too.

    Args:
        seconds: The limit, above 0.
    """
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
