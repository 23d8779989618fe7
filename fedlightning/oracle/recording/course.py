"""Steps from one point on, replayed one after the other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Self

from fedlightning.oracle.recording.direct import without_overrides
from fedlightning.oracle.recording.program import Steps
from fedlightning.oracle.recording.recording import Recording, key_of

Returned = tuple[list[Tensor], list[str]]
"""Results of a step but the operator, and the names of scalars."""


class Course:
    """Takes steps from one point, and goes on with the same replay while minibatches are alike.

    It is a context, which brings the point up to date when it is left.
    """

    def __init__(self, point: Tensor, lr: float) -> None:
        """Begin at ``point``, ``[S, d]``, or ``[d]`` for one client, with steps of size ``lr``."""
        self._point, self._lr = point, lr
        self._steps: Steps | None = None
        self._names: list[str] = []
        self._kind: Any = None

    def step(self, recording: Recording, others: tuple[Tensor, ...]) -> Returned | None:
        """Take a step.

        Args:
            recording: Of the operator.
            others: Its arguments but the point.

        Returns:
            What the recorded function returns, without the operator; None if it cannot be replayed.
        """
        kind = recording, key_of(others)
        if self._steps is None or self._kind != kind:
            self._end()
            begun = recording.steps(self._point, *others, lr=self._lr)
            if begun is None:
                return None
            (self._steps, self._names), self._kind = begun, kind
        with torch.no_grad(), without_overrides():
            return self._steps.send(others), self._names

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._steps is not None:
            with torch.no_grad(), without_overrides():
                self._steps.close()
        self._steps = None
