"""Services of several machines on one: started again when they end, and killed at will."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

_STARTED = time.monotonic()
_PAUSE = 10.0


class Service:
    """A process that is started again when it ends, as systemd does it.

    Attributes:
        name: Of the service.
        log: Where its output goes.
    """

    def __init__(self, name: str, log: Path, words: Sequence[str]) -> None:
        self.name, self.log, self._words = name, log, words
        self._start()

    def keep(self) -> None:
        """Start it again if it has ended, ten seconds after its last start at the earliest."""
        if self._process.poll() is not None and time.monotonic() - self._began > _PAUSE:
            say(f"{self.name} is started again")
            self._start()

    def kill(self) -> None:
        """Kill it with all its processes, as when its machine loses its power."""
        say(f"kill -9 {self.name}")
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def kill_program(self, name: str) -> None:
        """Kill a program that the service has started, at any depth."""
        say(f"kill -9 {name}")
        os.kill(self.program(name), signal.SIGKILL)

    def program(self, name: str) -> int:
        """Return the number of the process of a program that the service has started, at any depth.

        Raises:
            LookupError: If it is not running.
        """
        lines = subprocess.run(["ps", "-axo", "pid=,ppid=,command="], capture_output=True, text=True, check=True).stdout
        processes = [
            (int(pid), int(parent), words) for pid, parent, words in (i.split(None, 2) for i in lines.splitlines())
        ]
        family = {self._process.pid}
        for _ in processes:
            family |= {pid for pid, parent, _ in processes if parent in family}
        for pid, _, words in processes:
            if pid in family and name in words:
                return pid
        raise LookupError(f"{self.name} runs no {name}.")

    def stop(self) -> None:
        """End it, and what is left of its processes, as systemd does it."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _start(self) -> None:
        self._began = time.monotonic()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._words, stdout=log, stderr=log, start_new_session=True)


def until(condition: Callable[[], bool], services: Sequence[Service], seconds: float) -> None:
    """Wait for something, and keep services running meanwhile."""
    end = time.monotonic() + seconds
    while not condition():
        for service in services:
            service.keep()
        if time.monotonic() > end:
            sys.exit(
                f"Nothing happened within {seconds} seconds. Logs: {', '.join(str(each.log) for each in services)}"
            )
        time.sleep(0.2)


def fedlightning(*words: object, check: bool = True) -> None:
    """Carry out a command of this package; with ``check``, an error of it ends everything."""
    subprocess.run(command(*words), check=check)


def command(*words: object) -> list[str]:
    """Return a command line of this package."""
    return [sys.executable, "-m", "fedlightning", *map(str, words)]


def free_port() -> int:
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def say(text: str) -> None:
    """Print a line with the seconds since the start."""
    print(f"[{time.monotonic() - _STARTED:4.0f} s] {text}", flush=True)
