"""What Ctrl-C does to a comparison: runs stop between two rounds, never in the middle of something."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

NOTICE = b"\nStopping before the next round; Ctrl-C again stops at once.\n"


@contextmanager
def deferred_interrupts() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, as a function to ask.

    An exception out of nowhere may strike while a library holds a lock, which then nobody releases; so the first
    interrupt is only remembered. The second raises :class:`KeyboardInterrupt` where it strikes.
    """
    interrupted = False

    def remember(number: int, frame: Any) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, NOTICE)

    if threading.current_thread() is not threading.main_thread():  # only there can a process handle signals
        yield lambda: interrupted
        return
    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: interrupted
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Ctrl-C goes to every process of the terminal: those begun here never get it, this one gets it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
