"""SIGTERM in one of several processes is noted, and asks no other process from within the handler."""

from __future__ import annotations

import signal
from types import SimpleNamespace

from fedlightning.callbacks.termination import EndTogether
from tests.support.small import Line, trainer

CONNECTOR, HANDLER = "_signal_connector", "_sigterm_notifier_fn"


class Launcher:
    def __init__(self):
        self.killed = []

    def kill(self, number):
        self.killed.append(number)


def of_two(connector, launcher):
    return SimpleNamespace(**{CONNECTOR: connector, "world_size": 2, "strategy": SimpleNamespace(launcher=launcher)})


def test_a_signal_is_noted_and_handed_on_once():
    connector, launcher = vars(trainer())[CONNECTOR], Launcher()
    callback, run = EndTogether(), of_two(connector, launcher)
    callback.on_fit_start(run, Line())
    connector.register_signal_handlers()  # as Lightning does after that hook
    try:
        signal.raise_signal(signal.SIGTERM)
        assert connector.received_sigterm
        signal.raise_signal(signal.SIGTERM)
        assert launcher.killed == [signal.SIGTERM]
    finally:
        connector.teardown()
    callback.on_fit_end(run, Line())
    assert HANDLER not in vars(connector)
    callback.on_fit_start(run, Line())
    callback.on_exception(run, Line(), ValueError())
    assert HANDLER not in vars(connector)


def test_one_process_keeps_lightnings_handler():
    run = trainer()
    EndTogether().on_fit_start(run, Line())
    assert HANDLER not in vars(vars(run)[CONNECTOR])
