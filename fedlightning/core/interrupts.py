"""Handling of Ctrl-C where runs stop between two rounds, never in the middle of something."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

NOTICE = b"\nStopping before the next round; Ctrl-C again stops at once.\n"


@contextmanager
def deferred_interrupts(raising: bool = True) -> Iterator[Callable[[], int]]:
    """Count presses of Ctrl-C within a ``with`` block, and yield a function that returns the count.

    An exception out of nowhere may strike while a library holds a lock, which then nobody releases; so the first
    interrupt is only remembered. An ignored interrupt (``nohup``) stays ignored.

    Args:
        raising: Whether the second one raises :class:`KeyboardInterrupt` where it strikes; else it is remembered, too.
    """
    presses = 0

    def remember(number: int, frame: Any) -> None:
        nonlocal presses
        presses += 1
        if presses == 1:
            with suppress(OSError, ValueError):  # nobody may be reading any more
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, NOTICE)
        elif raising:
            raise KeyboardInterrupt

    handles = threading.current_thread() is threading.main_thread()  # only there can a process handle signals
    if not handles or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield lambda: presses
        return
    before = signal.signal(signal.SIGINT, remember)
    try:
        yield lambda: presses
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back: processes started within never receive the signal, this process receives it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
