"""Ctrl-C is remembered, and obeyed where runs stop."""

import os
import signal
import threading

import pytest

from fedlightning.compare.interrupts import NOTICE, deferred_interrupts


def ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_interrupt_is_remembered_and_announced(capfd):
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupts() as interrupted:
        assert not interrupted()
        ctrl_c()
        assert interrupted()
    assert capfd.readouterr().err == NOTICE.decode()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_interrupt_strikes_at_once():
    before = signal.getsignal(signal.SIGINT)
    with deferred_interrupts():
        ctrl_c()
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_go_without():
    asked = []

    def ask():
        with deferred_interrupts() as interrupted:
            asked.append(interrupted())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert asked == [False]
