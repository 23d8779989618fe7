"""Processes that are started again when they end."""

from __future__ import annotations

import ctypes
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

_LOG = logging.getLogger(__name__)
_PARENT_DEATH = 1
_LONG_ALIVE = 60.0
_PATIENCE = 15.0
REFUSED = 3
"""Exit status of a process of this package that cannot work as its config says, whenever it is started."""


@dataclass
class Service:
    """Describes a process that is to run all the time.

    Attributes:
        name: What log lines call it.
        command: Program and arguments.
        environment: Its environment; None for this process's own.
        longest_pause: Seconds before it is started again, at most; the pause doubles from one second on while it ends
            soon after each start.
        hopeless: Exit statuses with which it is of no use to start it again.
        advice: What to do if it ends by itself, for the log.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] | None = None
    longest_pause: float = 10.0
    hopeless: Sequence[int] = ()
    advice: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    started_at: float = field(default=0.0, init=False)
    due_at: float | None = field(default=None, init=False)
    pause: float = field(default=1.0, init=False)


class Supervisor:
    """Runs services, and starts those again that end; it ends when it is told to, or when one is hopeless.

    Attributes:
        services: What runs.
        status: Exit status of a hopeless service, with which the supervisor has ended; 0 otherwise.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """Begin with no service.

        Args:
            clock: Tells the time in seconds.
            sleep: Waits for so many seconds.
        """
        self.services: list[Service] = []
        self.status = 0
        self._clock = clock
        self._sleep = sleep
        self._stopped = False

    def stop(self) -> None:
        """Have :meth:`watch` end soon; may be called by a signal's handler."""
        self._stopped = True

    def start(self, service: Service) -> None:
        """Start a service."""
        self.services.append(service)
        self._start(service)

    def watch(self, until: Callable[[], bool] = lambda: False) -> bool:
        """Start services again as they end, until told to stop.

        Args:
            until: Whether to return to the caller now, with all services running.

        Returns:
            Whether it ended because of ``until``.
        """
        while not self._stopped:
            if until():
                return True
            for service in self.services:
                self._look_at(service)
            self._sleep(0.1)
        return False

    def end(self) -> None:
        """End all services, the last first: by SIGTERM, and by SIGKILL those that do not heed it."""
        running = [each.process for each in reversed(self.services) if each.process is not None]
        for process in running:
            process.terminate()
        end = self._clock() + _PATIENCE
        for process in running:
            try:
                process.wait(max(0.1, end - self._clock()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, service: Service) -> None:
        service.process = subprocess.Popen(
            service.command, env=service.environment, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent
        )
        service.started_at, service.due_at = self._clock(), None
        _LOG.info("%s started, process %d", service.name, service.process.pid)

    def _look_at(self, service: Service) -> None:
        if service.due_at is not None:
            if self._clock() >= service.due_at:
                self._start(service)
            return
        assert service.process is not None, "it was started when it was added"
        status = service.process.poll()
        if status is None:
            return
        why = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        if status in service.hopeless:
            _LOG.error("%s %s; see above", service.name, why)
            self.status, self._stopped = status, True
            return
        if self._clock() - service.started_at >= _LONG_ALIVE:
            service.pause = 1.0
        pause = min(service.pause, service.longest_pause)
        service.pause, service.due_at = 2 * pause, self._clock() + pause
        advice = f" {service.advice}" if service.advice and status > 0 else ""
        _LOG.warning("%s %s and is started again in %g seconds.%s", service.name, why, pause, advice)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Have the kernel end this process with the one that started it, however that one ends; Linux alone can.

    Args:
        number: The signal by which it is ended.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH, number)
