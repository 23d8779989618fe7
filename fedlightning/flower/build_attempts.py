"""How often a node's worker has ended while it built the task of a run, in a file beside the states."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlightning.core.errors import UsageError
from fedlightning.federation.files.whole_files import why_unwritten
from fedlightning.federation.remote.run_config import name_of_run
from fedlightning.federation.remote.store import StoreError

_FILE = "building.json"
_MOST = 3


class DeadlyRunError(UsageError):
    """A run has ended the worker of this node each time its task was built; it is not built again."""


class BuildAttempts:
    """Keeps a run from ending the worker for ever: after three deaths in a row its task is not built any more."""

    def __init__(self, states: Path) -> None:
        """Take the folder of the states of the node's clients."""
        self._file = states / _FILE

    @contextmanager
    def building(self, text: str) -> Iterator[None]:
        """Note that the task of a run is built in the ``with`` block, which takes the note back unless it ends all.

        Args:
            text: Description of the run.

        Raises:
            DeadlyRunError: If the last three attempts to build this run have ended the process.
            StoreError: If nothing can be noted.
        """
        name = name_of_run(text)
        deaths = self._deaths(name)
        if deaths >= _MOST:
            raise DeadlyRunError(
                f"The task of this run has ended the node's worker {deaths} times while it was built, and is not built "
                "again. The node's log says how the worker ended: mend it at the node (memory, a library, a class of "
                "its list) and start the node again, or give the server another task."
            )
        try:
            self._file.write_text(json.dumps({"run": name, "deaths": deaths + 1}), encoding="utf-8")
        except OSError as error:
            raise StoreError(f"A run cannot begin: {why_unwritten(error, self._file)}") from error
        try:
            yield
        finally:
            self.forget()

    def forget(self) -> None:
        """Let every run be built again."""
        self._file.unlink(missing_ok=True)

    def _deaths(self, name: str) -> int:
        """Return how many attempts to build a run have ended the process since one has not."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return int(found["deaths"]) if found["run"] == name else 0
        except (OSError, ValueError, TypeError, KeyError):  # none, or one that a killed process has left unfinished
            return 0
