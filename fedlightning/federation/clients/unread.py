"""A refusal of settings of clients' steps that an algorithm's own client updates never read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fedlightning.algorithms.base import Algorithm
from fedlightning.core.errors import InvalidValueError
from fedlightning.core.noted import noted, reads_noted
from fedlightning.local.torch_optimizers import name_of_optimizer
from fedlightning.oracle import GradientOracle

_COMES_FROM = {
    "local_optimizer": "federate takes it from the module's optimizer, unless that is plain SGD",
    "local_clip": "federate takes it from Trainer(gradient_clip_val=...)",
}
"""Where a setting may come from that no line of the user's names."""


class UnreadSettings:
    """Watches the client updates of the first round, until each of its phases has been computed.

    Clients that never took part in some phase, such as a node's, are watched for longer.
    """

    def __init__(self) -> None:
        """Begin before the first round."""
        self._phases, self._read = set[int](), set[str]()
        self._has_gradients = self._is_done = False

    @contextmanager
    def watched(self, algorithm: Algorithm) -> Iterator[None]:
        """Note what a client update reads."""
        if self._is_done or not _set(algorithm):
            yield
            return
        with reads_noted(algorithm) as read:
            yield
        self._read |= read

    def require_read(self, algorithm: Algorithm, phase: int, oracle: GradientOracle) -> None:
        """Check that client updates read what is set, once those of all phases have been watched.

        A round without gradients, which some methods begin with, says nothing.

        Args:
            algorithm: Bound to the task's parameters.
            phase: Number of the phase whose client update has been watched.
            oracle: With what that has counted.

        Raises:
            ValueError: If nothing has read a field that is set.
        """
        if self._is_done or not (names := _set(algorithm)):
            return
        self._phases.add(phase)
        self._has_gradients |= oracle.full_calls > 0 or bool(oracle.tally.counted().any())
        if not self._has_gradients or len(self._phases) < len(algorithm.phases):
            return
        for name in names:
            if name not in self._read:
                raise InvalidValueError(_message(algorithm, name))
        self._is_done = True


def _set(algorithm: Algorithm) -> list[str]:
    """Return the fields that the user has set, of those of which reads are noted."""
    return [name for name in noted(algorithm) if getattr(algorithm, name) is not None]


def _message(algorithm: Algorithm, name: str) -> str:
    kind, value = type(algorithm).__name__, getattr(algorithm.given, name)
    shown = name_of_optimizer(value) if name == "local_optimizer" else repr(value)
    return (
        f"{kind}({name}={shown}): the client updates of {kind} take steps without {name}, which nothing in them reads. "
        f"Take the steps by self.local_steps(...), derive {kind} from Algorithm with an lr of its own, or leave {name} "
        f"out ({_COMES_FROM[name]})."
    )
