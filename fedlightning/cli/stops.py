"""Commands that somebody stops: they end quietly, with the exit status that shells expect of a signal."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedlightning.core.errors import chain


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Let Ctrl-C end a ``with`` block also where code within replaces KeyboardInterrupt by an error, or drops it.

    Imports of compiled modules do so: NumPy's ends with "cannot load module more than once per process". Python itself
    drops it, with a traceback, where the key meets a destructor or a callback of a weak reference.

    Raises:
        KeyboardInterrupt: If Ctrl-C was pressed.
    """
    pressed = False

    def press(number: int, frame: Any) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    handles = threading.current_thread() is threading.main_thread()  # only there can a process handle signals
    if not handles or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    shown = sys.unraisablehook
    sys.unraisablehook = lambda lost: None if lost.exc_type is KeyboardInterrupt else shown(lost)
    signal.signal(signal.SIGINT, press)
    try:
        yield
    except Exception as error:
        if pressed:
            raise KeyboardInterrupt from error
        raise
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = shown
    if pressed:
        raise KeyboardInterrupt


def signal_behind(exit_: SystemExit) -> signal.Signals | None:
    """Return the signal for which Lightning ends the program; None if something else does."""
    lightning = sys.modules.get("lightning.pytorch.utilities.exceptions")
    if lightning is not None and isinstance(exit_, lightning.SIGTERMException):
        return signal.SIGTERM
    return signal.SIGINT if any(isinstance(cause, KeyboardInterrupt) for cause in chain(exit_)) else None


@contextmanager
def status_of_signals() -> Iterator[None]:
    """End with the status of the signal, where Lightning would end with 0 or 1.

    Raises:
        SystemExit: With status 130 after Ctrl-C, and 143 after SIGTERM.
    """
    try:
        yield
    except SystemExit as exit_:
        number = signal_behind(exit_)
        if number is None:
            raise
        raise SystemExit(128 + number) from exit_
