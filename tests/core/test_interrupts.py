"""Ctrl-C is remembered, and strikes when it is pressed again."""

from __future__ import annotations

import os
import signal
import sys
import threading

import pytest

from fedlightning.core.interrupts import NOTICE, deferred_interrupts


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


def test_nobody_needs_to_read_the_announcement(monkeypatch):
    """In ``... 2>&1 | tee log`` the reader gets the signal, too, and is gone first."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as closed:
        monkeypatch.setattr(sys, "__stderr__", closed)
        with deferred_interrupts() as interrupted:
            ctrl_c()
            assert interrupted() == 1


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with deferred_interrupts() as interrupted:
            ctrl_c()
            assert not interrupted()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_presses_are_counted_where_somebody_asks_for_more():
    with deferred_interrupts(raising=False) as presses:
        ctrl_c()
        ctrl_c()
        assert presses() == 2


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
    assert asked == [0]
