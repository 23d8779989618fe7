"""How a framework takes turns with the others: it waits for the driver's word before every round.

The driver writes ``round`` or ``accuracy`` to standard input and gets a line of JSON back; it measures time and memory.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version


class Turns:
    """The worker's side of the conversation."""

    def __init__(self, accuracy, *packages):
        """Tell the driver which packages run; ``accuracy`` computes the test accuracy when it asks for it."""
        self.accuracy = accuracy
        self.packages = {name: version(name) for name in packages}
        self.answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what the framework prints is no answer

    def wait(self):
        """Report that all work is done, and return when the next round is due; leave when the driver has left."""
        self._answer(self.packages)
        for line in sys.stdin:
            if line.strip() == "round":
                return
            self._answer(self.accuracy())
        sys.exit()

    def _answer(self, content):
        print(json.dumps(content), file=self.answers, flush=True)
